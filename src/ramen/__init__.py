"""Test-time adaptation of CLIP-like models on mixed-domain image streams.

>>> import ramen
>>> "ramen" in ramen.list_methods()
True
"""

from typing import TYPE_CHECKING

from ramen.utils.lazy_names import lazy_names

__version__ = "0.2.0"

if TYPE_CHECKING:
    from ramen import data as data
    from ramen import memory as memory
    from ramen import methods as methods
    from ramen import testing as testing
    from ramen.encoder.affine_encoder import AffineEncoder as AffineEncoder
    from ramen.experiments.analysis import scoring as scoring
    from ramen.images.preprocess import Preprocess as Preprocess
    from ramen.methods._adapted_module import AdaptedModule as AdaptedModule
    from ramen.methods._adapted_module import adapt as adapt
    from ramen.methods._answers import Answer as Answer
    from ramen.methods._answers import Prediction as Prediction
    from ramen.methods._base import Method as Method
    from ramen.methods._info import MethodInfo as MethodInfo
    from ramen.methods._registry import create as create
    from ramen.methods._registry import describe as describe
    from ramen.methods._registry import list_methods as list_methods
    from ramen.methods._registry import register as register
    from ramen.models import prompts as prompts
    from ramen.models.classifier import ZeroShotClassifier as ZeroShotClassifier
    from ramen.models.prefetch import prefetch as prefetch
    from ramen.serve.client.async_client import AsyncClient as AsyncClient
    from ramen.serve.client.client import Client as Client
    from ramen.serve.client.errors import ServerError as ServerError
    from ramen.serve.predictor import Predictor as Predictor
    from ramen.serve.result import Result as Result
    from ramen.utils.peers import GroupError as GroupError

# Where each public name lives. They are imported when first used: `import ramen` alone does not load torch.
_HOMES = {
    "AdaptedModule": "ramen.methods._adapted_module",
    "AffineEncoder": "ramen.encoder.affine_encoder",
    "Answer": "ramen.methods._answers",
    "AsyncClient": "ramen.serve.client.async_client",
    "Client": "ramen.serve.client.client",
    "GroupError": "ramen.utils.peers",
    "Method": "ramen.methods._base",
    "MethodInfo": "ramen.methods._info",
    "Prediction": "ramen.methods._answers",
    "Predictor": "ramen.serve.predictor",
    "Preprocess": "ramen.images.preprocess",
    "Result": "ramen.serve.result",
    "ServerError": "ramen.serve.client.errors",
    "ZeroShotClassifier": "ramen.models.classifier",
    "adapt": "ramen.methods._adapted_module",
    "create": "ramen.methods._registry",
    "describe": "ramen.methods._registry",
    "list_methods": "ramen.methods._registry",
    "prefetch": "ramen.models.prefetch",
    "register": "ramen.methods._registry",
}
# Packages and modules that are public as ``ramen.<name>``.
_MODULES = {
    "data": "ramen.data",
    "memory": "ramen.memory",
    "methods": "ramen.methods",
    "prompts": "ramen.models.prompts",
    "scoring": "ramen.experiments.analysis.scoring",
    "testing": "ramen.testing",
}

__all__ = ["__version__", *sorted(_HOMES), *_MODULES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _MODULES, ["__version__"])
