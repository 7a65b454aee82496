"""A classifier for streams of images that adapts, keeps what it learns, and always answers."""
