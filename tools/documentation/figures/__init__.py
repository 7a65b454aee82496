"""The figures of the pages, drawn from the program itself: ``make figures`` writes ``docs/images``."""
