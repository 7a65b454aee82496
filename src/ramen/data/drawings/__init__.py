"""Drawings of objects in many styles: what the tiny CLIP was trained on and is tested with."""
