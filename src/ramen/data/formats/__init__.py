"""The formats of stored data sets, one module per layout."""
