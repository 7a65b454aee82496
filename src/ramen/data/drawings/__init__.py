"""Drawings of objects in many styles: the training and test images of the tiny CLIP."""
