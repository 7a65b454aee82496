"""Zero-shot classifiers, and where they are loaded from."""
