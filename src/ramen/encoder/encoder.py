"""An image encoder as a pure function of images and one flat vector of norm parameters.

The weights and biases of all norm layers of an encoder form one vector of ``G`` numbers, layer after layer
in module order, weight before bias. ``AffineEncoder`` calls the encoder with the pretrained vector, with
another one shared by all images, or with one row per image. Methods then are arithmetic on vectors, "reset"
is "use the base vector again", and nothing is ever mutated. Likewise BatchNorm layers use their running
statistics, or those that a call passes in (``ramen.encoder.statistics``).
"""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.encoder import norms
from ramen.encoder.fused.read import read_passes
from ramen.encoder.fused.tower import FusedPasses, NotCoveredError
from ramen.encoder.passes import AffineSlice, OwnPasses, Router
from ramen.encoder.probe import probe, relative_error
from ramen.encoder.statistics import Statistics
from ramen.encoder.towers import image_tower
from ramen.utils.checks import AUTO
from ramen.utils.devices import bfloat16_unit, parse_device, parse_dtype
from ramen.utils.numerics import plain_numerics

_ADAPTABLE = "LayerNorm, BatchNorm with running statistics, GroupNorm and RMSNorm with a weight"
_GRADIENTS_DIFFER = 10  # times as much as features: rounding turns ReLUs on and off


class AffineEncoder:
    """Wrap ``module``, any image encoder with norm layers, as a function of images and a flat vector.

    The module is not changed: the encoder works on a private copy of its structure in eval mode, with its own
    buffers and norm parameters. The other weights are shared, not copied, unless ``device`` or ``dtype``
    differ, and get no gradient; wrap the module again after training it. One encoder serves one thread at a
    time.

    Args:
        module: Maps ``(B, 3, H, W)`` to features ``(B, d)``, or to a tuple whose first element is that, or to
            an output of transformers with pooled features. Of a model with a text tower too (a whole
            CLIPModel), the image half is used, and of a module that torch.compile has compiled the original.
        example: Images that show, at construction, along which axis each layer's input holds the images.
            Without it the module's own ``image_size`` is used, or the images of the first call.
        device: Where to compute; the module's own device if not given.
        dtype: Type of all weights except those of norm layers; the module's own if not given. ``"auto"`` is
            float16 on a GPU, bfloat16 for a large transformer on a CPU with AVX512-BF16 or AMX, else
            float32.
        fused: Whether to use the fused passes (``ramen.encoder.fused``), which agree with the
            module's own forward pass and autograd to rounding: ``"auto"`` if they cover the module, True
            insists on them, False uses the module itself. ``"compile"`` is ``"auto"``, but torch.compile
            compiles a module that they do not cover: that takes up to minutes when images of a new shape
            come, and its passes are faster from then on.

    Attributes:
        base: The pretrained flat vector ``(G,)``, fp32 (fp64 for a double encoder).
        layout: One ``AffineSlice`` per norm parameter.
        base_statistics: The running statistics of all adapted BatchNorm layers in module order, means in the
            first row and variances in the second, ``(2, channels)``; no channels if there is no BatchNorm.
        image_size: Height and width that the module states it takes, or None.
        plain_reason: Why the passes are not fused; empty if they are.

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
        fused: bool | str = "auto",
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        module = image_tower(module)
        first = next((p for p in module.parameters() if p.is_floating_point()), None)
        if first is None:
            raise ValueError("module must have floating-point parameters, got none")
        self.device = first.device if device is None else parse_device(device)
        self.dtype = weight_dtype(module) if dtype is None else chosen_dtype(dtype, module, self.device)
        self.image_size = stated_size(module)
        self.embed_dim: int | None = None  # known once images have been seen
        self._owner: nn.Module | None = module  # until the copy has been compared with it
        self._passes: FusedPasses | None = None
        self._build(module, frozenset())
        shape = example_shape(example, self.image_size)
        if shape is not None and (blind := self._probe(shape)):
            self._build(module, blind)
            self._probe(shape)
        self._fuse(check_fused(fused), shape)

    # -- the function -------------------------------------------------------------------------------

    def __call__(
        self,
        images: Tensor,
        affine: Tensor | None = None,
        *,
        statistics: Statistics | None = None,
        normalize: bool = True,
        router: Router | None = None,
    ) -> Tensor:
        """Embeddings ``(B, d)`` of unit length, fp32 (fp64 for a double encoder).

        Args:
            images: ``(B, 3, H, W)``, or the result of ``prepare``.
            affine: The norm parameters, ``(G,)`` or ``(B, G)``; the pretrained ones if not given.
            statistics: What BatchNorm layers normalise with; their running statistics if not given.
            normalize: If False, return the module's own output, in its own length, and in its own type (fp32
                with gradients in fp16).
            router: Asked by every norm layer in turn, with its name and the means of its input, what to add
                to its norm parameters for each image; passes are then the module's own, and ``images`` not
                prepared. Gradients flow through it, and in fp16 are not scaled.
        """
        self._check_images(images)
        if statistics is not None:
            statistics.check(len(images), self.base_statistics)
        affine = self._check_affine(affine, len(images))
        if self.dtype == torch.float16 and affine.requires_grad and torch.is_grad_enabled():
            inside = affine.view_as(affine)
            wide = self._features(images, inside, statistics, router).float()
            # A gradient has one size per image only as long as no layer mixes the images of a batch.
            if wide.requires_grad:
                _scale_gradients(wide, inside, per_image=affine.ndim == 2 and statistics is None)
            features = wide.view_as(wide)
        else:
            features = self._features(images, affine, statistics, router)
        if not normalize:
            return features
        return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)

    def prepare(self, images: Tensor) -> Tensor:
        """The part of a call that does not depend on norm parameters, for calls that share their images.

        Fused passes start from embedded patches ``(B, T, D)``, or from what the first convolution makes of
        the images; otherwise these are the images, in the encoder's type.
        """
        self._check_images(images)
        images = images.to(self.device, self.dtype)
        return images if self._passes is None else self._passes.prepare(images)

    @property
    def fused(self) -> bool:
        """Whether it computes by fused passes."""
        return self._passes is not None

    @property
    def compiled(self) -> bool:
        """Whether torch.compile compiles the module's own passes."""
        return self._own.compiled

    def gradient(self, loss: Tensor, affine: Tensor) -> Tensor:
        """The gradient of a scalar ``loss`` with respect to ``affine``, and to nothing else.

        For an ``affine`` of shape ``(B, G)`` and a sum of per-image losses, row ``i`` is the gradient of
        image ``i``'s loss alone: one backward pass gives all of them.
        """
        (gradient,) = torch.autograd.grad(loss, affine, allow_unused=True)
        return torch.zeros_like(affine) if gradient is None else gradient

    def weights(self) -> dict[str, Tensor]:
        """Every tensor that the function is made of, by name; for fingerprints and analyses."""
        tensors = {**dict(self._own.module.named_parameters()), **dict(self._own.module.named_buffers())}
        return {**tensors, "affine.base": self.base}

    def frozen(self, affine: Tensor | None = None) -> nn.Module:
        """An ordinary module whose norm layers have these parameters ``(G,)``; the pretrained if not given.

        It maps images to features, by its own forward pass and not by fused ones, and shares the weights.
        """
        affine = self._check_affine(affine, 1)
        if affine.ndim != 1:
            raise ValueError(f"affine must be one vector for all images, got shape {tuple(affine.shape)}")
        return self._own.frozen(affine)

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
        self._own = OwnPasses(module, found, self.device, self.dtype)
        self.layout: tuple[AffineSlice, ...] = self._own.layout
        self.base, self.base_statistics = self._own.base, self._own.base_statistics

    def _probe(self, image_shape: tuple[int, ...]) -> frozenset[str]:
        """Find the axis that holds the images; returns the norm layers that see none, if there are any."""
        assert self._owner is not None
        dtype = weight_dtype(self._owner)
        limit = tolerance({self.dtype, dtype}, self.device)
        finding = probe(
            self._owner, dtype, self._own.norms, self._own_features, self.base, image_shape, limit
        )
        if not finding.blind:
            self.embed_dim = finding.embed_dim
            self._owner = None
        return finding.blind

    def _fuse(self, fused: bool | str, image_shape: tuple[int, ...] | None) -> None:
        """Use fused passes, if they cover the tower and agree with it."""
        self.plain_reason = self._fuse_if_possible(image_shape) if fused else "fused=False"
        if fused is True and self.plain_reason:
            raise ValueError(f"fused=True: this encoder has no fused passes: {self.plain_reason}")
        if self.plain_reason:
            self._own.arrange_for_gpu()
        if fused == "compile" and self.plain_reason:
            self._own.compile()

    def _fuse_if_possible(self, image_shape: tuple[int, ...] | None) -> str:
        """Why it is not possible, or nothing."""
        places = self._own.places()
        if places is None:
            return "some of its norm layers share parameters"
        try:
            with torch.no_grad():
                self._passes = read_passes(self._own.module, self._own.norms, places)
        except NotCoveredError as reason:
            return str(reason)
        return "" if image_shape is None else self._compare(image_shape)

    @plain_numerics()
    def _compare(self, image_shape: tuple[int, ...]) -> str:
        """How the fused passes differ from the module, and no more fused passes; nothing if they agree."""
        passes, limit = self._passes, tolerance({self.dtype}, self.device)
        generator = torch.Generator().manual_seed(0)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(self.device)

        images, rows = noise(2, *image_shape), self.base + 0.05 * noise(2, len(self.base)).to(self.base)
        try:
            with torch.no_grad():
                unsaved = self(images, rows)
            features, gradient = self._probed_gradient(images, rows)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            self._passes = None
            return f"its parts do not fit together as those of a plain tower do: {error}"
        self._passes = None
        own_features, own_gradient = self._probed_gradient(images, rows)
        errors = {
            "features": max(relative_error(found, own_features) for found in (features, unsaved)),
            "gradients": relative_error(gradient, own_gradient) / _GRADIENTS_DIFFER,
        }
        worst = max(errors, key=lambda name: errors[name])
        if not errors[worst] <= limit:
            return f"the {worst} of the fused passes differ from its own"
        self._passes = passes
        return ""

    def _probed_gradient(self, images: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings of images with their own norm parameters, and the gradient of some sum of them."""
        with torch.enable_grad():
            leaf = rows.clone().requires_grad_()
            features = self(images, leaf)
            weights = torch.linspace(-1, 1, features.numel(), device=features.device).cos().view_as(features)
            gradient = self.gradient((features * weights).sum(), leaf)
        return features.detach(), gradient

    # -- one call -----------------------------------------------------------------------------------

    def _check_images(self, images: Tensor) -> None:
        if not isinstance(images, Tensor) or not images.is_floating_point():
            came = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise TypeError(f"images must be a float tensor, got {came}")
        if self._owner is None:
            return
        shape = tuple(images.shape[1:])
        if blind := self._probe(shape):
            raise ValueError(
                f"norm layers {', '.join(sorted(blind))} normalise a learned constant, not the images, and "
                "cannot be adapted for each image: construct the AffineEncoder with example=images, which "
                "leaves them out of the flat vector"
            )
        if self._passes is not None:
            self.plain_reason = self._compare(shape)

    def _check_affine(self, affine: Tensor | None, batch: int) -> Tensor:
        if affine is None:
            return self.base
        size = len(self.base)
        expected = f"a float tensor of shape ({size},) or ({batch}, {size}) for {batch} images"
        if not isinstance(affine, Tensor) or not affine.is_floating_point():
            raise TypeError(f"affine must be {expected}, got {type(affine).__name__}")
        if tuple(affine.shape) not in ((size,), (batch, size)):
            raise ValueError(f"affine must be {expected}, got shape {tuple(affine.shape)}")
        return affine.to(self.base.dtype)

    def _features(
        self,
        images: Tensor,
        affine: Tensor,
        statistics: Statistics | None = None,
        router: Router | None = None,
    ) -> Tensor:
        """The module's output, by its own forward pass or the fused one."""
        images = images.to(self.device, self.dtype)
        passes = None if statistics is not None or images.requires_grad else self._passes
        if passes is None or router is not None:
            return self._own(images, affine, statistics, router)
        prepared = images if passes.is_prepared(images) else passes.prepare(images)
        if torch.is_grad_enabled() and affine.requires_grad:
            features: Tensor = _FusedFunction.apply(prepared, affine, passes)
            return features
        return passes.forward(prepared, affine, keep=False)[0]

    def _own_features(self, images: Tensor, affine: Tensor) -> Tensor:
        """The module's output, by its own forward pass and not compiled, which would be for two images."""
        return self._own(images.to(self.device, self.dtype), affine, may_be_compiled=False)


class _FusedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prepared: Tensor, affine: Tensor, passes: FusedPasses) -> Tensor:
        features, ctx.saved_forward = passes.forward(prepared, affine, keep=True)
        ctx.passes = passes
        return features

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        """The gradient of the parameters: one row per image, or their sum if all images share one vector."""
        if ctx.saved_forward is None:
            raise RuntimeError("a second backward pass through the same forward pass is not possible")
        saved, ctx.saved_forward = ctx.saved_forward, None
        rows = ctx.passes.backward(gradient.contiguous(), saved)
        return None, rows if saved.affine.ndim == 2 else rows.sum(0), None


_TARGET_SIZE = 2.0**6
_SMALLEST = 2.0**-100  # a smaller gradient counts as zero


def _scale_gradients(features: Tensor, affine: Tensor, *, per_image: bool) -> None:
    """Scale the gradient where it enters the encoder in fp16, and back where it leaves."""
    factor = features.new_ones(())

    def enter(gradient: Tensor) -> Tensor:
        nonlocal factor
        size = gradient.abs()
        largest = size.amax(1, keepdim=True) if per_image else size.amax()
        factor = torch.exp2(torch.log2(_TARGET_SIZE / largest.clamp_min(_SMALLEST)).floor())
        return gradient * factor

    features.register_hook(enter)
    affine.register_hook(lambda gradient: gradient / factor)


_LARGE = 10_000_000  # weights; the norms of a smaller tower take as long as its products


def check_fused(value: object) -> bool | str:
    """``value``, if it is a choice between fused, compiled and plain passes."""
    if value is True or value is False or (isinstance(value, str) and value in ("auto", "compile")):
        return value
    raise ValueError(f"fused must be True, False, 'auto' or 'compile', got {value!r}")


def weight_dtype(module: nn.Module) -> torch.dtype:
    """The type that most weights have: half-precision models keep their norm layers in fp32."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in module.parameters():
        if parameter.is_floating_point():
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


def chosen_dtype(dtype: str | torch.dtype, module: nn.Module, device: torch.device) -> torch.dtype:
    """Parse ``dtype``, of which "auto" is what computes ``module`` fastest on ``device``."""
    if dtype != AUTO:
        return parse_dtype(dtype)
    if device.type == "cuda":
        return torch.float16
    in_bfloat16 = device.type == "cpu" and bfloat16_unit() is not None and _is_large_transformer(module)
    return torch.bfloat16 if in_bfloat16 else torch.float32


def _is_large_transformer(module: nn.Module) -> bool:
    """Whether nearly all work is products of large matrices: all else is no faster in bfloat16 on a CPU."""
    convolutions = sum(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in module.modules())
    weights = sum(parameter.numel() for parameter in module.parameters())
    return convolutions <= 1 and weights >= _LARGE  # the one that embeds patches


def tolerance(dtypes: set[torch.dtype], device: torch.device) -> float:
    """How far two ways to compute the same features may be apart, relative to their size."""
    if torch.bfloat16 in dtypes:
        return 0.15  # of three digits, a deep network loses one and a half
    if torch.float16 in dtypes:
        return 0.05
    # torch lets convolutions on a GPU round their factors to the ten bits of TF32
    return 5e-3 if device.type == "cuda" else 1e-3


def stated_size(module: nn.Module) -> tuple[int, int] | None:
    """The image size that open_clip's towers state, if the module does."""
    size = getattr(module, "image_size", None)
    if isinstance(size, int):
        return size, size
    if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(s, int) for s in size):
        return size[0], size[1]
    return None


def example_shape(example: object, stated: tuple[int, int] | None) -> tuple[int, ...] | None:
    """The shape of one image: that of the ``example`` batch, or of the size that a module states."""
    if example is None:
        return None if stated is None else (3, *stated)
    if not isinstance(example, Tensor) or example.ndim != 4:
        came = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"example must be a batch of images (B, 3, H, W), got {came}")
    return tuple(example.shape[1:])
