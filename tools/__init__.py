"""Programs for those who work on Ramen: the documentation site, the lowest supported versions."""
