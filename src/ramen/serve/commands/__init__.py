"""The commands of production: ``ramen classify``."""
