"""One engine for all streams of a model: their images share the passes, each stream keeps its own memory."""
