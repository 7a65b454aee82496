"""The model that a command names, with a message that helps if there are no weights."""

from collections.abc import Sequence
from typing import Protocol

from ramen.models.by_name import load_model
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.devices import device_and_dtype_names

TINY = "tiny"  # the model that is part of the package


class MissingWeightsError(RuntimeError):
    """A model's weights cannot be had."""


class ModelChoice(Protocol):
    """A model, and the classes that it is for; the fields are those of a ``ClassifyRequest``."""

    @property
    def model(self) -> str:
        """A form of ``ramen.models.by_name``."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names."""

    @property
    def templates(self) -> str | tuple[str, ...]:
        """A set of prompt templates, or templates."""

    @property
    def device(self) -> str | None:
        """Where to compute."""

    @property
    def dtype(self) -> str | None:
        """Of the encoder's weights."""


def load_classifier(request: ModelChoice) -> ZeroShotClassifier:
    """The model for the classes; MissingWeightsError if its weights can neither be found nor downloaded."""
    device, dtype = device_and_dtype_names(request.device, request.dtype)
    try:
        return load_model(request.model, request.classes, request.templates, device, dtype)
    except (ValueError, ConnectionError) as error:
        cause = error if isinstance(error, ConnectionError) else error.__cause__
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise MissingWeightsError(
            f"the weights of {request.model} cannot be loaded: {cause}\n"
            "They are downloaded when they are first used, which needs a network. Without one, copy a "
            "checkpoint to this machine and use --model ARCH/FILE or local-dir:FOLDER (`ramen models list` "
            f"explains the forms), or try --model {TINY}, which is included and knows drawings only."
        ) from error
