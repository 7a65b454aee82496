"""Names of clients that stay for one version: see ``ramen.client``."""
