"""The answer for one image, as users, files and services see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ZERO_SHOT_LABEL, LABEL = 2, 6  # columns of an answer in numbers, as ``Result.from_row`` reads it


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

    @classmethod
    def from_row(
        cls, key: str, row: Sequence[float], classes: Any, state_version: int, *, retrieves: bool
    ) -> "Result":
        """The result that an answer in numbers stands for.

        Args:
            key: Of the image.
            row: Both entropies; the zero-shot class and its probability; fallback; support; then class and
                probability for each of the top classes.
            classes: A class's name by its number.
            state_version: As above.
            retrieves: Whether support says anything.
        """
        entropy, zero_shot_entropy, zero_shot, zero_shot_probability, fallback, support, *top = row
        best = [(classes[int(index)], value) for index, value in zip(top[::2], top[1::2], strict=True)]
        return cls(
            key,
            label=best[0][0],
            probability=best[0][1],
            zero_shot_label=classes[int(zero_shot)],
            zero_shot_probability=zero_shot_probability,
            top=tuple(best),
            adapted=not fallback,
            support=(0 if fallback else int(support)) if retrieves else None,
            state_version=state_version,
            entropy=entropy,
            zero_shot_entropy=zero_shot_entropy,
        )

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
