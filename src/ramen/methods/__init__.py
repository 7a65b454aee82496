"""Test-time adaptation methods, one file each, and what their authors build with.

The names below are imported when first used.
"""

from typing import TYPE_CHECKING

from ramen.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from ramen.kernels.cuda_graphs import holds as holds
    from ramen.methods._adam import AdamState as AdamState
    from ramen.methods._adam import adam_step as adam_step
    from ramen.methods._answers import Answer as Answer
    from ramen.methods._answers import Support as Support
    from ramen.methods._base import Method as Method
    from ramen.methods._info import MethodInfo as MethodInfo
    from ramen.methods._online_weights import OnlineWeights as OnlineWeights
    from ramen.methods._pass_sharing import EmbeddingMethod as EmbeddingMethod
    from ramen.methods._pass_sharing import GradientMethod as GradientMethod
    from ramen.methods._registry import register as register
    from ramen.methods._steps import entropy as entropy
    from ramen.methods._steps import entropy_gradient as entropy_gradient
    from ramen.methods._steps import joint_gradient as joint_gradient
    from ramen.methods._steps import loss_gradient as loss_gradient
    from ramen.methods._steps import mean_entropy as mean_entropy
    from ramen.methods._steps import sample_gradients as sample_gradients
    from ramen.methods._steps import sign_step as sign_step
    from ramen.methods._together import predict_together as predict_together

_HOMES = {
    "AdamState": "ramen.methods._adam",
    "Answer": "ramen.methods._answers",
    "EmbeddingMethod": "ramen.methods._pass_sharing",
    "GradientMethod": "ramen.methods._pass_sharing",
    "Method": "ramen.methods._base",
    "MethodInfo": "ramen.methods._info",
    "OnlineWeights": "ramen.methods._online_weights",
    "Support": "ramen.methods._answers",
    "adam_step": "ramen.methods._adam",
    "entropy": "ramen.methods._steps",
    "entropy_gradient": "ramen.methods._steps",
    "holds": "ramen.kernels.cuda_graphs",
    "joint_gradient": "ramen.methods._steps",
    "loss_gradient": "ramen.methods._steps",
    "mean_entropy": "ramen.methods._steps",
    "predict_together": "ramen.methods._together",
    "register": "ramen.methods._registry",
    "sample_gradients": "ramen.methods._steps",
    "sign_step": "ramen.methods._steps",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
