"""The commands of production: ``ramen classify``, ``ramen serve``, ``ramen token``."""
