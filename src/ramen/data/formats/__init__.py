"""Data sets as they are stored: one module per layout."""
