"""Studies: similarity and domains, what the gradient cache saves, what methods cost."""
