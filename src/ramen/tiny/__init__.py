"""The embedded default: a tiny CLIP, the pictures it knows, the stream that it meets."""
