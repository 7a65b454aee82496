"""The figures of the documentation, drawn from the program itself: ``make figures`` writes ``docs/images``."""
