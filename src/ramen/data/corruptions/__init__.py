"""The common corruptions, with the parameters of CIFAR-C and of ImageNet-C.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019: fifteen corruptions, and four extra ones that the authors held out. ``CORRUPTIONS`` and
``EXTRA_CORRUPTIONS`` name them in the order of all tables; ``RECIPES`` has their parameters. Frost needs
photographs: see ``ramen.data.corruptions.frost``.
"""

from ramen.data.corruptions.recipes import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    RECIPES,
    SEVERITIES,
    Recipe,
    corrupt,
)

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "RECIPES", "SEVERITIES", "Recipe", "corrupt"]
