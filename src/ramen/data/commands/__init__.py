"""The commands of ``ramen data``."""
