"""The embedded default: a tiny CLIP with its weights."""
