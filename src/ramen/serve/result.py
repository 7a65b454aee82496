"""The answer for one image, as users, files and services see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What a predictor says about one source.

    Attributes:
        key: The path of a file, the caller's own key, or "image 17".
        label: The predicted class; None if there is an error.
        probability: Of that class.
        zero_shot_label: What the classifier says without adaptation.
        zero_shot_probability: Of that class.
        top: Up to five classes with their probabilities, the best first.
        adapted: False if the image was answered zero-shot: its numbers were not finite, the adaptation
            failed, or there is an error.
        support: How many stored images the answer is based on; None if the method retrieves none.
        state_version: How many images the method had seen after this image's batch.
        entropy: Of the answer's probabilities, in nats.
        zero_shot_entropy: The same without adaptation.
        error: Why there is no answer; it names the key.
    """

    key: str
    label: str | None
    probability: float | None
    zero_shot_label: str | None
    zero_shot_probability: float | None
    top: tuple[tuple[str, float], ...]
    adapted: bool
    support: int | None
    state_version: int
    entropy: float | None
    zero_shot_entropy: float | None
    error: str | None = None

    @classmethod
    def failed(cls, key: str, error: str, state_version: int) -> "Result":
        """The result for a source without an answer."""
        return cls(key, None, None, None, None, (), False, None, state_version, None, None, error)

    @property
    def changed(self) -> bool:
        """Whether adaptation changed the label."""
        return self.error is None and self.label != self.zero_shot_label

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return vars(self) | {"top": [list(entry) for entry in self.top]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Result":
        """What ``to_dict`` returned."""
        return cls(**{**values, "top": tuple((str(label), float(p)) for label, p in values["top"])})
