"""Corrupted sets of our own, in the layouts of the released ones.

Everything is decided by the seed: each piece of a fixed number of images has a generator of its own, so the
number of processes changes nothing. A run that was stopped is continued by the same call. ``made.json`` in
the folder tells what the set was made of: parameters, seed, source, versions, and where frost came from.
"""

from ramen.data.make.cifar_c import CIFAR_NAMES, make_cifar_c
from ramen.data.make.imagenet_c import make_imagenet_c
from ramen.data.make.output import ALL_CORRUPTIONS

__all__ = ["ALL_CORRUPTIONS", "CIFAR_NAMES", "make_cifar_c", "make_imagenet_c"]
