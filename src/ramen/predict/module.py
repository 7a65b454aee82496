"""A method as a module, to stand where a model stood in a loop."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder
from ramen.methods._method import Method
from ramen.methods._passes import Prediction
from ramen.methods._registry import create
from ramen.models.classifier import ZeroShotClassifier


def adapt(
    model: ZeroShotClassifier | Method | nn.Module | AffineEncoder,
    method: str | None = None,
    *,
    class_embeddings: Tensor | None = None,
    logit_scale: float | None = None,
    classes: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    **parameters: Any,
) -> "AdaptedModule":
    """A module that classifies batches and adapts to them, to stand where a model stood in a loop.

    >>> import torch
    >>> import ramen
    >>> encoder = ramen.testing.small_tower("vit")
    >>> texts = torch.eye(3, 16)
    >>> adapted = ramen.adapt(encoder, "tent", class_embeddings=texts, lr=1e-4)
    >>> adapted(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 3])

    Args:
        model: A ``ZeroShotClassifier``; a classification network, as for its ``from_classifier``; an image
            encoder, with ``class_embeddings``; or a method that was created before, which then takes neither
            ``method`` nor parameters.
        method: The name of a method, "ramen" if not given; ``ramen.list_methods()`` has them all.
        class_embeddings: For an encoder: one vector per class, as for ``ZeroShotClassifier``.
        logit_scale: For an encoder: logits are this times the cosine similarity; 100 if not given. For a
            network: as for ``from_classifier``.
        classes: For an encoder or a network: the names of the classes.
        image_size: For a network that does not know it: height and width of the images, or one number.
        parameters: Of the method, as for ``ramen.create``.
    """
    parts = {
        "class_embeddings": class_embeddings,
        "logit_scale": logit_scale,
        "classes": classes,
        "image_size": image_size,
    }
    parts = {name: value for name, value in parts.items() if value is not None}
    if isinstance(model, Method):
        given = [*(["method"] if method is not None else []), *parts, *parameters]
        if given:
            raise TypeError(f"{', '.join(given)}: the method that was given as model has its own")
        return AdaptedModule(model)
    return AdaptedModule(create(method or "ramen", _as_classifier(model, parts), **parameters))


def _as_classifier(model: object, parts: Mapping[str, Any]) -> ZeroShotClassifier:
    """The classifier that a model is, or becomes. Other kinds of models belong here."""
    if isinstance(model, ZeroShotClassifier):
        if parts:
            raise TypeError(f"{', '.join(parts)}: the ZeroShotClassifier that was given as model has its own")
        return model
    if not isinstance(model, nn.Module | AffineEncoder):
        raise TypeError(
            "model must be a ZeroShotClassifier, a method, a classification network or an image encoder, "
            f"got {type(model).__name__}"
        )
    if "class_embeddings" in parts:
        if "image_size" in parts:
            raise TypeError("image_size: only for a classification network, not with class_embeddings")
        return ZeroShotClassifier(model, **parts)
    if isinstance(model, AffineEncoder):
        raise TypeError("class_embeddings must be given with an AffineEncoder: one vector per class")
    return ZeroShotClassifier.from_classifier(model, **parts)


class AdaptedModule(nn.Module):
    """A method behind the interface of an ``nn.Module``; made by ``ramen.adapt``.

    Calling it is ``method.predict``: it answers the batch and learns from it, in ``train`` and in ``eval``
    mode alike, and the logits carry no gradient, with or without ``torch.no_grad``.

    It has no parameters and no buffers: nothing of the wrapped model is ever changed. ``state_dict`` has what
    was learned from the stream (the method's own state, tensors only) and not the weights of the model, which
    are where they came from; ``load_state_dict`` continues bit for bit on a CPU, and refuses a state of
    another model, method or class list. It stays on its classifier's device and in its dtype: ``to``,
    ``cuda`` and ``half`` raise a RuntimeError if they would move it.

    Args:
        method: What answers.

    Attributes:
        method: The same.
        last: The whole prediction of the last call, with zero-shot logits; None before the first.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.last: Prediction | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(B, C)`` of preprocessed images ``(B, 3, H, W)``; the method learns from them."""
        self.last = self.method.predict(images)
        return self.last.logits

    def reset(self) -> None:
        """Forget what was learned."""
        self.method.reset()
        self.last = None

    def extra_repr(self) -> str:
        """The method, for ``repr``."""
        return f"{self.method.info.name}, {self.method.classifier!r}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, tensor in self.method.state_dict().items():
            destination[f"{prefix}{name}"] = tensor

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {name.removeprefix(prefix): state_dict[name] for name in state_dict if name.startswith(prefix)}
        if not own:
            missing_keys.append(f"{prefix}header")
            return
        try:
            self.method.load_state_dict(own)
        except ValueError as error:
            error_msgs.append(str(error))
        self.last = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "AdaptedModule":
        classifier = self.method.classifier
        here = torch.empty(0, device=classifier.device, dtype=classifier.dtype)
        there = fn(here)
        if (there.device, there.dtype) != (here.device, here.dtype):
            raise RuntimeError(
                f"an adapted module stays on its classifier's device and in its dtype ({here.device}, "
                f"{here.dtype}), cannot become {there.device}, {there.dtype}: make the classifier there "
                "(device=..., dtype=...), then adapt it"
            )
        return self
