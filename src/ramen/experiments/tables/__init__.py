"""Tables: one model, several formats, and the tables of results."""
