"""An image encoder as a pure function of images and one flat vector of norm parameters.

The weights and biases of all norm layers of an encoder form one vector of ``G`` numbers, layer after layer
in module order, weight before bias. ``AffineEncoder`` calls the encoder with the pretrained vector, with
another one shared by all images, or with a row of its own for every image. Methods then are arithmetic on
vectors, "reset" is "use the base vector again", and nothing is ever mutated.
"""

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen import norms
from ramen.devices import parse_device, parse_dtype, plain_numerics

# Entropy gradients of confident images underflow in fp16 activations; a power of two costs no bit.
_FP16_LOSS_SCALE = 2.0**10
_ADAPTABLE = "LayerNorm, BatchNorm with running statistics, GroupNorm and RMSNorm with a weight"


@dataclass(frozen=True)
class AffineSlice:
    """Where one parameter of one norm layer lies in the flat vector."""

    layer: str
    kind: str  # "weight" or "bias"
    start: int
    stop: int
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The parameter's name in the wrapped module."""
        return f"{self.layer}.{self.kind}" if self.layer else self.kind


class AffineEncoder:
    """Wrap ``module``, any image encoder with norm layers, as a function of images and a flat vector.

    The module stays its owner's: this works on a private structure in eval mode that shares the weights
    (so training the module in place shows through), has its own buffers and needs no gradient for any
    weight. One encoder serves one thread at a time.

    Args:
        module: Maps ``(B, 3, H, W)`` to features ``(B, d)``, or to a tuple whose first element is that.
        example: Images to find out with, at construction, where each layer's input holds the images.
            Without it the module's own ``image_size`` decides, or the first call's images.
        device: Where to compute; the module's own device if not given.
        dtype: Type of all weights but the norm layers'; the module's own if not given.

    Attributes:
        base: The pretrained flat vector ``(G,)``, fp32 (fp64 for a double encoder).
        layout: One ``AffineSlice`` for each norm parameter.

    >>> from torch import nn
    >>> encoder = AffineEncoder(nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4)))
    >>> [piece.name for piece in encoder.layout], encoder.base.shape
    (['2.weight', '2.bias'], torch.Size([8]))
    >>> encoder(torch.zeros(5, 3, 2, 2), encoder.base.expand(5, -1)).shape
    torch.Size([5, 4])
    """

    @plain_numerics()
    def __init__(
        self,
        module: nn.Module,
        *,
        example: Tensor | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        first = next((p for p in module.parameters() if p.is_floating_point()), None)
        if first is None:
            raise ValueError("module must have floating-point parameters, got none")
        self.device = first.device if device is None else parse_device(device)
        self.dtype = _weight_dtype(module) if dtype is None else parse_dtype(dtype)
        self.embed_dim: int | None = None  # known once images of the right size have been seen
        self._owner: nn.Module | None = module  # until the copy has been compared with it
        self._build(module, frozenset())
        if example is None:
            example = _default_example(module)
        if example is not None:
            blind = self._probe(example)
            if blind:
                self._build(module, blind)
                self._probe(example)

    # -- the function -------------------------------------------------------------------------------

    def __call__(self, images: Tensor, affine: Tensor | None = None) -> Tensor:
        """Embeddings ``(B, d)`` of unit length, fp32 (fp64 for a double encoder)."""
        features = self.features(images, affine)
        return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)

    def features(self, images: Tensor, affine: Tensor | None = None) -> Tensor:
        """The module's own output ``(B, d)``, before it is brought to unit length."""
        if self._owner is not None and (blind := self._probe(images)):
            raise ValueError(
                f"norm layers {', '.join(sorted(blind))} normalise a learned constant, not the images, and "
                "cannot be adapted for each image: construct the AffineEncoder with example=images, which "
                "leaves them out of the flat vector"
            )
        affine = self._check_affine(affine, len(images))
        return self._forward(images, affine)

    def gradient(self, loss: Tensor, affine: Tensor) -> Tensor:
        """The gradient of a scalar ``loss`` with respect to ``affine``, and to nothing else.

        For an ``affine`` of shape ``(B, G)`` and a sum of per-image losses, row ``i`` is the gradient of
        image ``i``'s loss alone: one backward pass gives all of them.
        """
        scale = _FP16_LOSS_SCALE if self.dtype == torch.float16 else 1.0
        (gradient,) = torch.autograd.grad(loss * scale, affine, allow_unused=True)
        return torch.zeros_like(affine) if gradient is None else gradient / scale

    def weights(self) -> dict[str, Tensor]:
        """Every tensor that the function is made of, by name; for fingerprints and analyses."""
        tensors = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        return {**tensors, "affine.base": self.base}

    # -- construction -------------------------------------------------------------------------------

    def _build(self, module: nn.Module, left_out: frozenset[str]) -> None:
        """Make the private structure with its norm layers replaced, all but those ``left_out``."""
        found = {
            name: layer
            for name, layer in module.named_modules()
            if name not in left_out and norms.find_replacement(layer) is not None
        }
        if not found:
            raise ValueError(f"{type(module).__name__} has no norm layer to adapt; {_ADAPTABLE} can be")
        for name, layer in module.named_modules():
            if name not in found and name not in left_out and norms.looks_like_norm(layer):
                warnings.warn(
                    f"norm layer {name!r} of type {type(layer).__name__} is not adapted; {_ADAPTABLE} can be",
                    stacklevel=3,
                )
        self._module, self._norms = norms.replace_norms(module, found, self.device, self.dtype)
        self.layout, self.base = self._flatten(found)

    def _flatten(self, found: dict[str, nn.Module]) -> tuple[tuple[AffineSlice, ...], Tensor]:
        dtype = torch.promote_types(self.dtype, torch.float32)
        layout: list[AffineSlice] = []
        values: list[Tensor] = []
        start = 0
        for layer_name, layer in found.items():
            for kind in ("weight", "bias"):
                value = getattr(layer, kind, None)
                if isinstance(value, Tensor):
                    stop = start + value.numel()
                    layout.append(AffineSlice(layer_name, kind, start, stop, tuple(value.shape)))
                    values.append(value.detach().to(self.device, dtype).flatten())
                    start = stop
        return tuple(layout), torch.cat(values)

    @torch.no_grad()
    def _probe(self, example: Tensor) -> frozenset[str]:
        """Find the image axis of every norm layer's input, and check that the copy equals the original.

        Whether an axis holds tokens or images cannot be told from one shape (50 tokens, 50 images); so one
        image and two are sent through, and the axis that doubles is the one. Returns the layers whose
        input does not depend on the images (CoCa's pooling normalises a learned query), if there are any.
        """
        assert self._owner is not None
        pair = torch.randn((2, *example.shape[1:]), generator=torch.Generator().manual_seed(0))
        seen_one, _ = self._record_inputs(pair[:1])
        seen_two, features = self._record_inputs(pair)
        blind = frozenset(name for name, x in seen_two.items() if x.shape == seen_one[name].shape)
        if blind:
            return blind
        for name, two in seen_two.items():
            self._norms[name].place_images(name, seen_one[name], two)
        self._check_equals(self._owner, pair, features)
        self.embed_dim = features.shape[1]
        self._owner = None
        return blind

    def _record_inputs(self, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        seen: dict[str, Tensor] = {}
        hooks = []
        for name, norm in self._norms.items():

            def record(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                seen[name] = inputs[0]

            hooks.append(norm.register_forward_pre_hook(record))
        try:
            return seen, self._forward(images, self.base)
        finally:
            for hook in hooks:
                hook.remove()

    def _check_equals(self, owner: nn.Module, images: Tensor, features: Tensor) -> None:
        original = norms.private_copy(owner)
        device = next(original.parameters()).device
        expected = _pooled(original(images.to(device, _weight_dtype(owner)))).to(self.device, torch.float32)
        error = (features.float() - expected).norm() / expected.norm().clamp_min(1e-12)
        half = {self.dtype, _weight_dtype(owner)} & {torch.float16, torch.bfloat16}
        if not error <= (0.05 if half else 1e-3):
            raise ValueError(
                f"{type(owner).__name__} cannot be wrapped: with its norm layers replaced its output differs "
                f"from its own by {error:.1%}. Norm layers found: {', '.join(self._norms)}"
            )

    # -- one call -----------------------------------------------------------------------------------

    def _check_affine(self, affine: Tensor | None, batch: int) -> Tensor:
        if affine is None:
            return self.base
        size = len(self.base)
        if tuple(affine.shape) not in ((size,), (batch, size)):
            raise ValueError(
                f"affine must have shape ({size},) or ({batch}, {size}) for {batch} images, "
                f"got {tuple(affine.shape)}"
            )
        return affine.to(self.base.dtype)

    def _forward(self, images: Tensor, affine: Tensor) -> Tensor:
        pieces = affine.split([s.stop - s.start for s in self.layout], dim=-1)
        leading = affine.shape[:-1]
        try:
            for piece, where in zip(pieces, self.layout, strict=True):
                setattr(self._norms[where.layer], where.kind, piece.reshape(*leading, *where.shape))
            return _pooled(self._module(images.to(self.device, self.dtype)))
        finally:
            for norm in self._norms.values():
                norm.weight = norm.bias = None


def sign_step(affine: Tensor, gradient: Tensor, lr: float) -> Tensor:
    """One SignSGD step; a coordinate whose gradient is not finite stays where it is."""
    direction = torch.sign(torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0))
    return affine - lr * direction.to(affine.dtype)


def _pooled(output: object) -> Tensor:
    """The image features of an encoder's output: CoCa-like towers return tokens beside them."""
    features = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(features, Tensor) or features.ndim != 2:
        came = tuple(features.shape) if isinstance(features, Tensor) else type(output).__name__
        raise ValueError(f"the encoder must return features of shape (images, width), got {came}")
    return features


def _weight_dtype(module: nn.Module) -> torch.dtype:
    """The type that most weights have: half-precision models keep their norm layers in fp32."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in module.parameters():
        if parameter.is_floating_point():
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


def _default_example(module: nn.Module) -> Tensor | None:
    """A blank image of the size that open_clip's towers state, if the module does."""
    size = getattr(module, "image_size", None)
    if isinstance(size, int):
        size = (size, size)
    if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(s, int) for s in size):
        return torch.zeros(1, 3, *size)
    return None
