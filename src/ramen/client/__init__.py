"""A Ramen service as its clients see it: the list of operations, without torch and without FastAPI."""
