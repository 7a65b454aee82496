"""Test-time adaptation of CLIP-like models on mixed-domain image streams.

>>> import ramen
>>> "ramen" in ramen.list_methods()
True
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ramen import prompts as prompts
    from ramen import testing as testing
    from ramen.affine import AffineEncoder as AffineEncoder
    from ramen.classifier import ZeroShotClassifier as ZeroShotClassifier
    from ramen.methods.base import Answer as Answer
    from ramen.methods.base import Method as Method
    from ramen.methods.base import MethodInfo as MethodInfo
    from ramen.methods.base import Prediction as Prediction
    from ramen.methods.registry import create as create
    from ramen.methods.registry import describe as describe
    from ramen.methods.registry import list_methods as list_methods
    from ramen.methods.registry import register as register
    from ramen.preprocess import Preprocess as Preprocess

# Where each public name lives. They are imported when first used: `import ramen` alone does not load torch.
_HOMES = {
    "AffineEncoder": "ramen.affine",
    "Answer": "ramen.methods.base",
    "Method": "ramen.methods.base",
    "MethodInfo": "ramen.methods.base",
    "Prediction": "ramen.methods.base",
    "Preprocess": "ramen.preprocess",
    "ZeroShotClassifier": "ramen.classifier",
    "create": "ramen.methods.registry",
    "describe": "ramen.methods.registry",
    "list_methods": "ramen.methods.registry",
    "register": "ramen.methods.registry",
}
_MODULES = ("prompts", "testing")

__all__ = ["__version__", *sorted(_HOMES), *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"ramen.{name}")
    raise AttributeError(f"module 'ramen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
