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
    from ramen import serve as serve
    from ramen import testing as testing
    from ramen.client.async_client import AsyncClient as AsyncClient
    from ramen.client.client import Client as Client
    from ramen.client.operations import ServerError as ServerError
    from ramen.client.result import Result as Result
    from ramen.encoder.encoder import AffineEncoder as AffineEncoder
    from ramen.experiments import scoring as scoring
    from ramen.experiments.results import results as results
    from ramen.images.preprocess import Preprocess as Preprocess
    from ramen.methods._choices import paper_values as paper_values
    from ramen.methods._losses import information as information
    from ramen.methods._method import Method as Method
    from ramen.methods._passes import Answer as Answer
    from ramen.methods._passes import Prediction as Prediction
    from ramen.methods._registry import MethodInfo as MethodInfo
    from ramen.methods._registry import create as create
    from ramen.methods._registry import describe as describe
    from ramen.methods._registry import list_methods as list_methods
    from ramen.methods._registry import register as register
    from ramen.models import prompts as prompts
    from ramen.models.classifier import ZeroShotClassifier as ZeroShotClassifier
    from ramen.models.prefetch import prefetch as prefetch
    from ramen.predict.module import AdaptedModule as AdaptedModule
    from ramen.predict.module import adapt as adapt
    from ramen.predict.predictor import Predictor as Predictor
    from ramen.utils.distributed import GroupError as GroupError

# Where each public name lives. They are imported when first used: `import ramen` alone does not load torch.
_HOMES = {
    "AdaptedModule": "ramen.predict.module",
    "AffineEncoder": "ramen.encoder.encoder",
    "Answer": "ramen.methods._passes",
    "AsyncClient": "ramen.client.async_client",
    "Client": "ramen.client.client",
    "GroupError": "ramen.utils.distributed",
    "Method": "ramen.methods._method",
    "MethodInfo": "ramen.methods._registry",
    "Prediction": "ramen.methods._passes",
    "Predictor": "ramen.predict.predictor",
    "Preprocess": "ramen.images.preprocess",
    "Result": "ramen.client.result",
    "ServerError": "ramen.client.operations",
    "ZeroShotClassifier": "ramen.models.classifier",
    "adapt": "ramen.predict.module",
    "create": "ramen.methods._registry",
    "describe": "ramen.methods._registry",
    "information": "ramen.methods._losses",
    "list_methods": "ramen.methods._registry",
    "paper_values": "ramen.methods._choices",
    "prefetch": "ramen.models.prefetch",
    "register": "ramen.methods._registry",
    "results": "ramen.experiments.results",
}
# Packages and modules that are public as ``ramen.<name>``.
_MODULES = {
    "data": "ramen.data",
    "memory": "ramen.memory",
    "methods": "ramen.methods",
    "prompts": "ramen.models.prompts",
    "scoring": "ramen.experiments.scoring",
    "serve": "ramen.serve",
    "testing": "ramen.testing",
}

__all__ = ["__version__", *sorted(_HOMES), *_MODULES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _MODULES, ["__version__"])
