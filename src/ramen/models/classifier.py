"""The zero-shot classifier that every method starts from."""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder, check_fused
from ramen.encoder.passes import Router
from ramen.encoder.statistics import Statistics
from ramen.images.preprocess import Preprocess
from ramen.kernels.graphs import Recorder
from ramen.models import prompts
from ramen.models.constructors import Constructors, as_encoder
from ramen.models.text import TextEncoder
from ramen.utils.checks import number
from ramen.utils.numerics import finite_or_zero, plain_numerics

_SHORTEST = 1e-12  # what a row of zeros, in place of an embedding that is not finite, is divided by


class MissingPartError(ValueError):
    """A classifier lacks what a method needs: a text encoder, the embeddings of a template."""


class ZeroShotClassifier(Constructors):
    """Image encoder, class embeddings, logit scale and preprocessing; it never changes.

    Args:
        encoder: Any image encoder with norm layers, ``(B, 3, H, W)`` to ``(B, d)``; or an ``AffineEncoder``.
        class_embeddings: ``(C, d)``, or ``(C, templates, d)`` for methods that want each template.
        logit_scale: Logits are this times the cosine similarity, plus ``logit_bias``.
        classes: Names; "0", "1", ... if not given.
        templates: The templates behind ``class_embeddings``, a name or the strings, where it is known.
        preprocess: What ``clf.preprocess`` does.
        encode_text: Maps texts to embeddings ``(n, d)``, for methods that write prompts.
        device: Where to compute; the encoder's own device if not given.
        dtype: Type of the encoder's weights, norm layers excepted, or ``"auto"``; its own if not given.
        fused: Whether to use fused passes, as in ``AffineEncoder``, and on a GPU CUDA graphs
            (``ramen.kernels.graphs``): ``"auto"`` if possible, True insists on fused passes, False uses
            the encoder's own forward pass and autograd, ``"compile"`` is ``"auto"`` with torch.compile for
            encoders that they do not cover.
        allow_same_names: Accept classes of the same name, which no prompt can distinguish. The usual names
            of ImageNet's classes contain two names twice.
        logit_bias: The same for all classes, as SigLIP has it: it changes no probability among the classes.
        class_lengths: For a network whose logits are products, not cosines: the length of each class's
            vector ``(C,)``. Features then end with a constant 1, as ``from_classifier`` arranges.

    Attributes:
        class_embeddings: One unit vector per class, ``(C, d)``.
        template_embeddings: One unit vector per class and template, ``(C, templates, d)``, or None.
        encoder: The ``AffineEncoder``.
    """

    @plain_numerics()
    def __init__(
        self,
        encoder: nn.Module | AffineEncoder,
        class_embeddings: Tensor,
        logit_scale: float = 100.0,
        *,
        classes: Sequence[str] | None = None,
        templates: str | Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        encode_text: TextEncoder | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        fused: bool | str = "auto",
        allow_same_names: bool = False,
        logit_bias: float = 0.0,
        class_lengths: Tensor | None = None,
    ) -> None:
        self.fused = check_fused(fused)
        self.logit_scale = number("logit_scale", logit_scale, 0, exclusive=True)
        self.logit_bias = number("logit_bias", logit_bias, -math.inf)
        _check_embeddings(class_embeddings)
        count = len(class_embeddings)
        names = tuple(map(str, range(count))) if classes is None else classes
        self.classes = prompts.check_classes(names, allow_same_names=allow_same_names)
        if len(self.classes) != count:
            raise ValueError(
                f"classes must name the {count} rows of class_embeddings, got {len(self.classes)}"
            )
        self.templates = None if templates is None else prompts.check_templates(templates)
        if self.templates and class_embeddings.ndim == 3 and len(self.templates) != class_embeddings.shape[1]:
            raise ValueError(
                f"templates must name the {class_embeddings.shape[1]} templates of class_embeddings, "
                f"got {len(self.templates)}"
            )
        self.encode_text = encode_text
        self.encoder = as_encoder(encoder, preprocess, device, dtype, self.fused)
        self._preprocess = None if preprocess is None else preprocess.to(self.device)
        self._check_range = None if preprocess is None else PixelRangeCheck(preprocess.mean, preprocess.std)

        vectors = class_embeddings.detach().to(self.device, torch.promote_types(self.dtype, torch.float32))
        self.template_embeddings = F.normalize(vectors, dim=-1) if vectors.ndim == 3 else None
        self.class_embeddings = (
            F.normalize(vectors, dim=-1) if vectors.ndim == 2 else prompts.average_templates(vectors)
        )
        if (self.class_embeddings.norm(dim=-1) < 0.5).any():
            raise ValueError("class_embeddings: the templates of a class must not cancel each other")
        self.class_lengths = None
        if class_lengths is not None:
            _check_lengths(class_lengths, class_embeddings)
            self.class_lengths = class_lengths.detach().to(self.class_embeddings)
        self._check_width()
        self._fingerprint: dict[str, Any] | None = None
        self._encoder_hash: str | None = None

    def with_classes(self, classes: Sequence[str]) -> "ZeroShotClassifier":
        """The same encoder, templates and preprocessing for other classes, embedded by the text tower.

        Both share the encoder, so that ``ramen.methods.predict_together`` answers their images together.
        """
        if self.encode_text is None:
            raise MissingPartError(
                "with_classes needs a text encoder to embed the classes: give the ZeroShotClassifier one "
                "(encode_text=...), or make another one with the same AffineEncoder and embeddings of its own"
            )
        names = prompts.check_classes(classes)
        templates = prompts.check_templates(self.templates or prompts.ENSEMBLE)
        embeddings = prompts.embed_classes(self.encode_text, names, templates)
        if len(embeddings.flatten(1).unique(dim=0)) < len(names):
            raise ValueError(
                f"classes must have names that the model can distinguish, got {', '.join(map(repr, names))}: "
                "it reads only the beginning of long names"
            )
        other = ZeroShotClassifier(
            self.encoder,
            embeddings,
            self.logit_scale,
            classes=names,
            templates=templates,
            preprocess=self._preprocess,
            encode_text=self.encode_text,
            fused=self.fused,
            logit_bias=self.logit_bias,
        )
        other._encoder_hash = self._hash_of_encoder()
        return other

    # -- what it knows ------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.encoder.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the encoder's weights."""
        return self.encoder.dtype

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images it takes, where that is known."""
        return self.encoder.image_size if self._preprocess is None else self._preprocess.size

    @property
    def pixel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and standard deviation of the channels, as preprocessing takes them out, where known."""
        return None if self._preprocess is None else (self._preprocess.mean, self._preprocess.std)

    @property
    def preprocess(self) -> Preprocess:
        """PIL images, paths or uint8 tensors to the float tensor that the encoder takes, on its device.

        Uint8 tensors of one size are also resized there, to the same numbers as on the CPU.
        """
        if self._preprocess is None:
            raise ValueError(
                "this classifier was built without preprocessing: pass preprocess=ramen.Preprocess(size=...) "
                "to ZeroShotClassifier, or preprocess the images yourself"
            )
        return self._preprocess

    @property
    def can_preprocess(self) -> bool:
        """Whether ``preprocess`` is known."""
        return self._preprocess is not None

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    def __repr__(self) -> str:
        return (
            f"ZeroShotClassifier({self.num_classes} classes, {len(self.encoder.base):,} affine parameters, "
            f"logit_scale={self.logit_scale:g}, device={self.device}, dtype={self.dtype})"
        )

    def fingerprint(self) -> dict[str, Any]:
        """What identifies it: class names, a hash of the encoder's weights, logit scale."""
        if self._fingerprint is None:
            self._fingerprint = {
                "classes": list(self.classes),
                "encoder": self._hash_of_encoder(),
                "dtype": str(self.dtype).removeprefix("torch."),
                "logit_scale": self.logit_scale,
            }
            if self.class_lengths is not None:
                self._fingerprint["class_lengths"] = _hash({"": self.class_lengths})
        return self._fingerprint

    def _hash_of_encoder(self) -> str:
        if self._encoder_hash is None:
            self._encoder_hash = _hash(self.encoder.weights())
        return self._encoder_hash

    # -- what it computes ---------------------------------------------------------------------------

    def check_images(self, images: object, *, may_be_empty: bool = False) -> Tensor:
        """``images``, if it is a batch of preprocessed images."""
        if not isinstance(images, Tensor):
            raise TypeError(f"images must be a tensor, got {type(images).__name__}; clf.preprocess makes one")
        height, width = self.image_size or ("H", "W")
        expected = f"a float tensor of shape (B, 3, {height}, {width})"
        came = f"{images.dtype} of shape {tuple(images.shape)}"
        if not images.is_floating_point():
            raise ValueError(
                f"images must be {expected}, got {came}; clf.preprocess makes one of uint8 images"
            )
        wrong_size = self.image_size is not None and tuple(images.shape[2:]) != self.image_size
        if images.ndim != 4 or images.shape[1] != 3 or wrong_size:
            raise ValueError(f"images must be {expected}, got {came}")
        if len(images) == 0:
            if may_be_empty:
                return images
            raise ValueError("images must hold at least one image, got an empty batch")
        # Normalised images have negative numbers: then there is nothing to look into.
        if self._check_range is not None and not (images.device.type == "cpu" and images.amin() < 0):
            self._check_range(images)
        return images

    def encode(
        self,
        images: Tensor,
        affine: Tensor | None = None,
        *,
        statistics: Statistics | None = None,
        normalize: bool = True,
        router: Router | None = None,
    ) -> Tensor:
        """Embeddings ``(B, d)`` with the given norm parameters, statistics, router; see ``AffineEncoder``.

        They have unit length, or if ``normalize`` is False the length that the encoder gives them.
        """
        embeddings = self.encoder(images, affine, statistics=statistics, normalize=normalize, router=router)
        self._check_width()
        return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))

    def logits(self, embeddings: Tensor, class_embeddings: Tensor | None = None) -> Tensor:
        """Logits ``(B, C)`` of unit embeddings.

        Args:
            embeddings: As ``encode`` returns them; rows of zeros have logits of zero, plus the bias.
            class_embeddings: Other unit vectors to compare with, one per class; the classifier's own if not
                given.
        """
        vectors = self.class_embeddings if class_embeddings is None else class_embeddings
        if self.class_lengths is None:
            logits = self.logit_scale * embeddings @ vectors.T
        else:
            # The features ended with a 1 before they were divided by their length.
            lengths = embeddings[:, -1:].clamp_min(_SHORTEST).reciprocal()
            logits = lengths * (embeddings @ vectors.T) * self.class_lengths
        return logits + self.logit_bias if self.logit_bias else logits

    def embed_templates(self, templates: Sequence[str]) -> Tensor | None:
        """Unit embeddings ``(C, templates, d)`` of the classes in these templates, known or computed.

        None where they are not known and there is no text encoder.
        """
        known = self.templates or ()
        if self.template_embeddings is not None and set(templates) <= set(known):
            return self.template_embeddings[:, [known.index(template) for template in templates]]
        if self.encode_text is None:
            return None
        return prompts.embed_classes(self.encode_text, self.classes, templates).to(self.class_embeddings)

    def gradient(self, loss: Tensor, affine: Tensor) -> Tensor:
        """The gradient of ``loss`` with respect to ``affine``; see ``AffineEncoder.gradient``."""
        return self.encoder.gradient(loss, affine)

    def recorder(self) -> Recorder:
        """For a method's functions of tensors that may become CUDA graphs, if ``fused`` allows it."""
        return Recorder(enabled=bool(self.fused))

    def _check_width(self) -> None:
        width, expected = self.class_embeddings.shape[-1], self.encoder.embed_dim
        if expected is not None and width != expected:
            raise ValueError(
                f"class_embeddings must have the encoder's width {expected}, got {width} "
                f"(shape {tuple(self.class_embeddings.shape)})"
            )


def _check_embeddings(embeddings: object) -> None:
    if not isinstance(embeddings, Tensor) or not embeddings.is_floating_point():
        came = embeddings.dtype if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise TypeError(f"class_embeddings must be a float tensor, got {came}")
    if embeddings.ndim not in (2, 3) or 0 in embeddings.shape:
        raise ValueError(
            "class_embeddings must have shape (classes, width) or (classes, templates, width), "
            f"got {tuple(embeddings.shape)}"
        )
    bad = ~embeddings.isfinite().all(-1) | (embeddings.float().norm(dim=-1) == 0)
    if bad.any():
        first = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"class_embeddings must be finite and not zero, got a vector at {first} that is not so"
        )


def _check_lengths(lengths: Tensor, embeddings: Tensor) -> None:
    expected = f"{len(embeddings)} positive numbers, one for each row of class_embeddings"
    if not isinstance(lengths, Tensor) or lengths.shape != embeddings.shape[:1]:
        came = tuple(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ValueError(f"class_lengths must be {expected}, got {came}")
    if not (lengths.isfinite() & (lengths > 0)).all():
        raise ValueError(f"class_lengths must be {expected}, got some that are not so")


def _hash(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_WHITE = 255.0
_FAR_BEYOND = 4  # times the largest number that normalising gives
_LOOKS = 4  # batches of another device than the CPU, at most: the host waits for each


class PixelRangeCheck:
    """Notices batches that look like pixels of 0 to 255, which were not normalised.

    On the CPU every batch is checked, elsewhere the first ones: until one has negative numbers, as normalised
    images have, and those for warming up have not.

    Args:
        mean: Of the channels, as preprocessing subtracts it.
        std: Preprocessing then divides by it.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._brightest = max((1 - m) / s for m, s in zip(mean, std, strict=True))
        self._looks = _LOOKS

    @plain_numerics()
    def __call__(self, images: Tensor) -> None:
        """Raise a ValueError if ``images`` look like pixels that are not normalised."""
        kind = images.device.type
        if kind == "meta" or (kind != "cpu" and not self._looks):
            return
        images = images.detach()
        low, high = torch.stack(images.aminmax()).tolist()
        if not math.isfinite(low + high):
            low, high = torch.stack(finite_or_zero(images).aminmax()).tolist()
        if low >= 0 and _FAR_BEYOND * self._brightest < high <= _WHITE:
            raise ValueError(
                f"images must be normalised, to {self._brightest:.2g} at the most, got numbers from {low:g} "
                f"to {high:g}, like pixels of 0 to 255; clf.preprocess normalises files, PIL images and "
                "uint8 tensors"
            )
        if kind != "cpu":
            self._looks = 0 if low < 0 else self._looks - 1
