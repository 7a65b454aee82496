"""Making corrupted sets in the layouts of the released ones.

The seed determines everything: each block of a fixed number of images has a random generator of its own, so
the number of processes makes no difference. If a run is interrupted, the same call resumes it. ``made.json``
in the folder records how the set was made: parameters, seed, source, versions, and where the frost textures
came from.
"""

from ramen.data.make.make import ALL_CORRUPTIONS, CIFAR_NAMES, make_cifar_c, make_imagenet_c

__all__ = ["ALL_CORRUPTIONS", "CIFAR_NAMES", "make_cifar_c", "make_imagenet_c"]
