"""Norm layers whose weight and bias are set anew for every call.

A norm layer normalises, then multiplies by a weight and adds a bias. Here the second step uses what the
caller has assigned to ``weight`` and ``bias``: one set for all images, or one row per image. The statistics
of a BatchNorm layer can also be set. Statistics and the affine step are computed in fp32 (fp64 for a double
encoder); the result has the dtype of the input.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.encoder.statistics import LayerStatistics

# Of one layer: the means of its input, one row per image, to what is added to weight and bias, or None.
LayerRouter = Callable[[Tensor], Tensor | None]

_SHAPE_ATTRIBUTES = ("normalized_shape", "num_features", "num_channels", "num_groups")


class Norm(nn.Module):
    """Base class of the replacements, which differ in how they normalise.

    ``weight`` and ``bias`` have the shape of the original parameters (shared by all images), or that shape
    after an axis of images. ``image_axis`` and ``rows_per_image`` say where the images are in this layer's
    input; they matter only in the second case, for ``statistics``, which only BatchNorm uses, and for
    ``router``: given the means of the layer's input, one row per image, it returns what is added to weight
    and bias, one row per image too.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self.statistics: LayerStatistics | None = None
        self.router: LayerRouter | None = None
        self.eps = _eps(original)
        self.param_shape: torch.Size = original.weight.shape  # type: ignore[assignment]
        self.channels_first = _is_channels_first(original)
        self.image_axis: int | None = None
        self.rows_per_image = 1
        for name in _SHAPE_ATTRIBUTES:  # some encoders read them
            if hasattr(original, name):
                setattr(self, name, getattr(original, name))
        # timm fuses dropout and activation into some of its norm layers; dropout is the identity in eval.
        activation = getattr(original, "act", None)
        self.activation = activation if isinstance(activation, nn.Module) else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, apply ``weight`` and ``bias``, then the fused activation if the original had one."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        weight, bias = self.weight, self.bias
        if self.router is not None:
            weight, bias = self._routed(wide, self.router)
        given = weight if weight is not None else bias
        if given is not None and given.ndim > len(self.param_shape):
            y = self.normalise_per_image(wide, weight, bias)
        else:
            y = self.normalise(wide, weight, bias)
        y = y.to(x.dtype)
        return y if self.activation is None else self.activation(y)

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The normalisation of the original layer, with its affine step unless both are None."""
        raise NotImplementedError

    def normalise_per_image(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The same with one row of weights and biases per image."""
        return self._affine_per_image(self.normalise(x, None, None), weight, bias)

    def feature_axis(self, x: Tensor) -> int:
        """The first of the axes of ``x`` that the original weight runs along."""
        return 1 if self.channels_first else x.ndim - len(self.param_shape)

    def _routed(self, x: Tensor, router: LayerRouter) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias, with what the router adds to them for each image."""
        added = router(self._image_means(x))
        if added is None:
            return self.weight, self.bias
        kinds = [kind for kind in (self.weight, self.bias) if kind is not None]
        sizes = [self.param_shape.numel()] * len(kinds)
        parts = iter(added.view(len(added), -1).split(sizes, dim=1))
        weight, bias = (
            None if kind is None else kind + next(parts).view(-1, *self.param_shape)
            for kind in (self.weight, self.bias)
        )
        return weight, bias

    def _image_means(self, x: Tensor) -> Tensor:
        """The mean of each image's part of the layer's input along the axes that the weight does not have."""
        if self.image_axis is None:
            raise RuntimeError("it is not known yet which axis of this norm layer's input holds the images")
        first = self.feature_axis(x)
        kept = {self.image_axis, *range(first, first + len(self.param_shape))}
        rest = [axis for axis in range(x.ndim) if axis not in kept]
        means = x.mean(rest) if rest else x
        return means.view(-1, self.rows_per_image, *self.param_shape).mean(1)

    def _affine_per_image(self, normalised: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        weight = None if weight is None else self._spread(weight, normalised)
        bias = None if bias is None else self._spread(bias, normalised)
        if weight is None:
            return normalised if bias is None else normalised + bias
        return normalised * weight if bias is None else torch.addcmul(bias, normalised, weight)

    def _spread(self, parameter: Tensor, x: Tensor) -> Tensor:
        """``parameter``, one row per image, in a shape that broadcasts against ``x``.

        After the axis of images it has the shape of the original weight, or no further axis.
        """
        if self.image_axis is None:
            raise RuntimeError("it is not known yet which axis of this norm layer's input holds the images")
        if self.rows_per_image > 1:
            parameter = parameter.repeat_interleave(self.rows_per_image, dim=0)
        shape = [1] * x.ndim
        shape[self.image_axis] = parameter.shape[0]
        first = self.feature_axis(x)
        shape[first : first + parameter.ndim - 1] = list(parameter.shape[1:])
        return parameter.reshape(shape)


class LayerNorm(Norm):
    """Over the last axes, or over the channel axis of an image-shaped input (timm's ``LayerNorm2d``)."""

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        shape = list(self.param_shape)
        if self.channels_first:
            return F.layer_norm(x.movedim(1, -1), shape, weight, bias, self.eps).movedim(-1, 1)
        return F.layer_norm(x, shape, weight, bias, self.eps)


class RMSNorm(Norm):
    """Division by the root mean square; no mean is subtracted."""

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        eps = self.eps if self.eps > 0 else None  # None: the precision of the dtype, torch's default
        shape = list(self.param_shape)
        if self.channels_first:
            x = x.movedim(1, -1)
        y = F.rms_norm(x, shape, weight, eps)
        y = y if bias is None else y + bias
        return y.movedim(-1, 1) if self.channels_first else y


class GroupNorm(Norm):
    """Over groups of channels; instance norm is the case of one channel per group."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        self.channels_first = True
        self.groups: int = getattr(original, "num_groups", self.param_shape[0])

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.group_norm(x, self.groups, weight, bias, self.eps)


class BatchNorm(Norm):
    """With the running statistics of the original, unless ``statistics`` are set.

    Statistics of a batch make an image's output depend on the other images.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        self.channels_first = True
        buffers = dict(original.named_buffers())
        self.register_buffer("running_mean", buffers["running_mean"])
        self.register_buffer("running_var", buffers["running_var"])

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        given = self.statistics
        if given is not None and given.share > 0:
            return given.normalise(x, self._spread(given.counted, x), weight, bias, self.eps)
        mean, var = self._fixed_statistics(x)
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=self.eps)

    def normalise_per_image(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """See ``Norm.normalise_per_image``.

        On a CPU every channel of every image passes as a channel of its own: torch's batch norm then applies
        each image's parameters, and returns each image's gradient, on its one way through the feature map.
        """
        mixes_images = self.statistics is not None and self.statistics.share > 0
        images_first = self.image_axis == 0 and self.rows_per_image == 1
        if mixes_images or not images_first or x.device.type != "cpu" or not x.is_contiguous():
            return super().normalise_per_image(x, weight, bias)
        mean, var = (one.repeat(len(x)) for one in self._fixed_statistics(x))
        own_weight, own_bias = (None if one is None else one.reshape(-1) for one in (weight, bias))
        channels = x.view(1, -1, *x.shape[2:])
        y = F.batch_norm(channels, mean, var, own_weight, own_bias, training=False, eps=self.eps)
        # To autograd not a view: an activation in place would otherwise copy all of it on the way back.
        reshaped: Tensor = torch.ops.aten._unsafe_view(y, x.shape)
        return reshaped

    def _fixed_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        given = self.statistics
        mean, var = (self.running_mean, self.running_var) if given is None else (given.mean, given.var)
        return mean.to(x.dtype), var.to(x.dtype)


def find_replacement(layer: nn.Module) -> Callable[[nn.Module], Norm] | None:
    """The class that replaces ``layer``, or None if it has no affine parameters to adapt."""
    if not isinstance(getattr(layer, "weight", None), Tensor):
        return None
    if isinstance(layer, nn.LayerNorm):
        return LayerNorm
    if isinstance(layer, nn.GroupNorm):
        return GroupNorm
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return BatchNorm if layer.running_mean is not None else None
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        return GroupNorm if layer.running_mean is None else None
    # The classes of other libraries (timm, transformers) have that name and a weight, but no common base.
    if isinstance(layer, nn.RMSNorm) or "rmsnorm" in type(layer).__name__.lower():
        return RMSNorm
    return None


def looks_like_norm(layer: nn.Module) -> bool:
    """Whether ``layer`` has the name of a norm layer and a weight of its own, trainable or frozen."""
    own = {name for name, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))}
    return "norm" in type(layer).__name__.lower() and "weight" in own


def private_copy(
    module: nn.Module,
    norm_layers: Mapping[str, nn.Module] | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A copy of the module in eval mode that shares its weights, without gradients, and has its own buffers.

    Weights are moved to ``device`` and ``dtype`` if given; those of ``norm_layers`` keep their dtype.
    """
    layers = (norm_layers or {}).values()
    kept = {id(t) for layer in layers for t in (*layer.parameters(), *layer.buffers())}

    def moved(tensor: Tensor) -> Tensor:
        cast = dtype if tensor.is_floating_point() and id(tensor) not in kept else None
        shared = tensor.detach().to(device=device, dtype=cast)
        return shared.clone() if shared.is_inference() else shared  # autograd refuses inference tensors

    memo: dict[int, object] = {
        **{id(p): nn.Parameter(moved(p), requires_grad=False) for p in module.parameters()},
        **{id(b): moved(b).clone() for b in module.buffers()},
    }
    try:
        private = copy.deepcopy(module, memo).eval()
    except Exception as error:
        raise ValueError(
            f"{type(module).__name__} cannot be wrapped, as it cannot be copied: {error}"
        ) from error
    for part in private.modules():
        if getattr(part, "grad_checkpointing", False) is True:
            part.grad_checkpointing = False  # type: ignore[assignment]  # would run the forward pass again after the call
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # its fused inference kernel would bypass the norm layers
    return private


def replace_norms(
    module: nn.Module, layers: Mapping[str, nn.Module], device: torch.device, dtype: torch.dtype
) -> tuple[nn.Module, dict[str, Norm]]:
    """A private copy of ``module`` whose named ``layers`` are replaced, and the replacements by name."""
    private = private_copy(module, layers, device, dtype)
    by_name: dict[str, Norm] = {}
    by_layer: dict[int, Norm] = {}
    for name in layers:
        layer = private.get_submodule(name)
        replacement = find_replacement(layer)
        assert replacement is not None
        by_name[name] = by_layer[id(layer)] = replacement(layer)
    if id(private) in by_layer:
        return by_layer[id(private)], by_name
    for parent in list(private.modules()):
        for name, child in parent._modules.items():
            if id(child) in by_layer:  # one layer may be registered several times
                parent._modules[name] = by_layer[id(child)]
    return private, by_name


def with_parameters(module: nn.Module, values: Mapping[tuple[str, str], Tensor]) -> nn.Module:
    """A private copy of ``module``, whose replaced norm layers keep these parameters as buffers.

    They are given by a norm layer's name and ``"weight"`` or ``"bias"``.
    """
    private = private_copy(module)
    for (name, kind), value in values.items():
        layer = private.get_submodule(name)
        if kind in vars(layer):  # not yet set: a layer that is registered twice is met once only
            delattr(layer, kind)
            layer.register_buffer(kind, value.clone())
    return private


def _eps(layer: Any) -> float:
    eps = getattr(layer, "eps", getattr(layer, "variance_epsilon", None))
    return float(eps) if eps is not None else 0.0


def _is_channels_first(layer: nn.Module) -> bool:
    return "2d" in type(layer).__name__.lower() or getattr(layer, "data_format", None) == "channels_first"
