"""Classifiers in production: a predictor for streams of images, its durable state, and ``ramen classify``."""
