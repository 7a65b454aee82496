"""One file a method, each reading like its paper's algorithm; ``base`` is what they share."""
