"""Test-time adaptation methods, one file each, and what their authors build with.

The names below are imported when first used.
"""

from typing import TYPE_CHECKING, Any

from ramen.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from ramen.kernels.graphs import holds as holds
    from ramen.methods._losses import entropy as entropy
    from ramen.methods._losses import mean_entropy as mean_entropy
    from ramen.methods._method import Method as Method
    from ramen.methods._optim import AdamState as AdamState
    from ramen.methods._optim import OnlineWeights as OnlineWeights
    from ramen.methods._optim import adam_step as adam_step
    from ramen.methods._optim import sign_step as sign_step
    from ramen.methods._passes import Answer as Answer
    from ramen.methods._passes import Pass as Pass
    from ramen.methods._passes import Seen as Seen
    from ramen.methods._passes import Support as Support
    from ramen.methods._passes import entropy_gradient as entropy_gradient
    from ramen.methods._passes import joint_gradient as joint_gradient
    from ramen.methods._passes import sample_gradients as sample_gradients
    from ramen.methods._registry import MethodInfo as MethodInfo
    from ramen.methods._registry import field as field
    from ramen.methods._registry import register as register
    from ramen.methods._runner import predict_together as predict_together

_HOMES = {
    "AdamState": "ramen.methods._optim",
    "Answer": "ramen.methods._passes",
    "Method": "ramen.methods._method",
    "MethodInfo": "ramen.methods._registry",
    "OnlineWeights": "ramen.methods._optim",
    "Support": "ramen.methods._passes",
    "Pass": "ramen.methods._passes",
    "Seen": "ramen.methods._passes",
    "adam_step": "ramen.methods._optim",
    "entropy": "ramen.methods._losses",
    "entropy_gradient": "ramen.methods._passes",
    "field": "ramen.methods._registry",
    "holds": "ramen.kernels.graphs",
    "joint_gradient": "ramen.methods._passes",
    "mean_entropy": "ramen.methods._losses",
    "predict_together": "ramen.methods._runner",
    "register": "ramen.methods._registry",
    "sample_gradients": "ramen.methods._passes",
    "sign_step": "ramen.methods._optim",
}

__all__ = sorted(_HOMES)

_GONE = {
    "EmbeddingMethod": "derive from Method, and let adapt yield Pass(images, of='embeddings')",
    "GradientMethod": "derive from Method, and let adapt yield a Pass and return Answer(Pass(...), ...)",
    "loss_gradient": "let adapt yield Pass(images, affine, loss, usable, of='embeddings')",
}

_get, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise ImportError(f"ramen.methods.{name} is gone: {_GONE[name]}")
    return _get(name)
