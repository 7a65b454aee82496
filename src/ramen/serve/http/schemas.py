"""What is sent and answered as JSON. Fields have the names of the engine's own types."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ramen.client.operations import FeedbackCounts, StreamActivity, StreamAnswer, StreamInfo

MAX_KEY = 256
MAX_CLASSES = 100_000
MAX_LABELS = 10_000
_EXAMPLE_ID = "b1f0c2-17"

Name = Annotated[str, Field(min_length=1, max_length=1000)]


_DEFAULTS = ConfigDict(json_schema_serialization_defaults_required=True)


class _Json(BaseModel):
    model_config = _DEFAULTS


class ErrorDetailJson(_Json):
    """An error."""

    code: str = Field(description="Which error it is, for programs.", examples=["overloaded"])
    message: str = Field(description="What was wrong and what is expected, for people.")
    retry_after_ms: int | None = Field(None, description="When it is worth trying again; only with 429, 503.")


class ErrorJson(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetailJson


class OipErrorJson(BaseModel):
    """The same in the Open Inference Protocol."""

    error: str


class ImageJson(BaseModel):
    """One image."""

    key: str | None = Field(None, max_length=MAX_KEY, description="Your own name for it.", examples=["a.jpg"])
    data: str = Field(description="The bytes of an image file, in base64.", examples=["iVBORw0KGgo="])


class ImagesJson(BaseModel):
    """Images to classify."""

    images: list[ImageJson] = Field(fail_fast=True, min_length=1)


class ClassesJson(BaseModel):
    """Class names."""

    classes: list[Name] = Field(
        fail_fast=True, min_length=1, max_length=MAX_CLASSES, examples=[["cat", "dog"]]
    )


class NewStreamJson(BaseModel):
    """A stream to create."""

    classes: list[Name] | None = Field(
        None,
        fail_fast=True,
        min_length=1,
        max_length=MAX_CLASSES,
        description="By default those of the model.",
    )


class TrueLabelJson(BaseModel):
    """The true label of an image that was answered."""

    id: str = Field(max_length=MAX_KEY, description="The answer's id.", examples=[_EXAMPLE_ID])
    label: Name = Field(examples=["cat"])


class TrueLabelsJson(BaseModel):
    """True labels."""

    labels: list[TrueLabelJson] = Field(fail_fast=True, min_length=1, max_length=MAX_LABELS)


class LabelProbabilityJson(_Json):
    """A class and its probability."""

    label: str
    probability: float


class AnswerJson(_Json):
    """The answer for one image; if `error` is set, it says why there is none."""

    id: str = Field(description="Names the answer in feedback; empty for an error.", examples=[_EXAMPLE_ID])
    key: str
    label: str | None
    probability: float | None
    zero_shot_label: str | None = Field(description="What the model says without adaptation.")
    zero_shot_probability: float | None
    top: list[LabelProbabilityJson] = Field(description="Up to five classes, the best first.")
    probabilities: dict[str, float] | None = Field(description="Of all classes, with `probabilities=all`.")
    adapted: bool = Field(description="False if the image was answered zero-shot.")
    changed: bool = Field(description="Whether adaptation changed the label.")
    support: int | None = Field(description="How many stored images the answer is based on.")
    state_version: int = Field(description="How many images the stream had seen after this one's batch.")
    entropy: float | None
    zero_shot_entropy: float | None
    error: str | None
    queued_ms: float
    computed_ms: float


class ClassifyJson(_Json):
    """One answer per image, in the order in which they were sent."""

    stream: str
    answers: list[AnswerJson]


@dataclass(frozen=True)
class FeedbackJson(FeedbackCounts):
    """How right the answers were that a true label was sent for."""

    accuracy: float | None = None
    zero_shot_accuracy: float | None = None
    __pydantic_config__ = _DEFAULTS


@dataclass(frozen=True)
class StreamJson(StreamInfo):
    """One stream."""

    feedback: FeedbackJson
    accuracy: float | None = None
    zero_shot_accuracy: float | None = None
    __pydantic_config__ = _DEFAULTS


class StreamsJson(_Json):
    """A page of streams, by name."""

    streams: list[StreamJson]
    next: str | None = Field(description="Pass it as `after` for the next page; null if there is none.")


class ChangedImageJson(_Json):
    """An image that adaptation gave another label."""

    key: str
    label: str
    probability: float | None
    zero_shot_label: str
    zero_shot_probability: float | None
    time: float
    thumbnail: str = Field(description="A small JPEG, in base64.")


class ActivityJson(_Json):
    """A stream's last answers."""

    entropy: float | None
    zero_shot_entropy: float | None
    changed_share: float | None
    class_mix: list[tuple[str, int]] = Field(description="How often each class was answered.")
    changed_images: list[ChangedImageJson]
    answers: int = Field(description="How many answers these are.")


class ModelJson(_Json):
    """What is served."""

    name: str = Field(examples=["ViT-B-16/openai"])
    method: str
    classes: list[str] = Field(description="Of streams that do not set their own.")
    image_size: list[int] = Field(description="Height and width.", min_length=2, max_length=2)
    max_batch: int = Field(description="The most images in a request.")
    can_set_classes: bool = Field(description="Whether a stream may have classes of its own.")
    device: str
    dtype: str


class StateJson(_Json):
    """Whether the server can answer."""

    status: str = Field(examples=["ready"])


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return None if value is None or not math.isfinite(value) else float(value)


def answer_values(answer: StreamAnswer, classes: Sequence[str] | None = None) -> dict[str, Any]:
    """The values of an ``AnswerJson``; plain ones, as a model of each would cost more than all the rest.

    Args:
        answer: The engine's.
        classes: Of the stream, to also give the probabilities of all.
    """
    result = answer.result
    probabilities = None
    if classes is not None and answer.probabilities is not None and len(classes) == len(answer.probabilities):
        pairs = zip(classes, answer.probabilities.tolist(), strict=True)
        probabilities = {name: finite(p) or 0.0 for name, p in pairs}
    return {
        "id": answer.id,
        "key": result.key,
        "label": result.label,
        "probability": finite(result.probability),
        "zero_shot_label": result.zero_shot_label,
        "zero_shot_probability": finite(result.zero_shot_probability),
        "top": [{"label": label, "probability": finite(p) or 0.0} for label, p in result.top],
        "probabilities": probabilities,
        "adapted": result.adapted,
        "changed": result.changed,
        "support": result.support,
        "state_version": result.state_version,
        "entropy": finite(result.entropy),
        "zero_shot_entropy": finite(result.zero_shot_entropy),
        "error": result.error,
        "queued_ms": finite(answer.queued_ms) or 0.0,
        "computed_ms": finite(answer.computed_ms) or 0.0,
    }


def feedback_json(counts: FeedbackCounts) -> FeedbackJson:
    """Counts, and the shares that follow from them."""
    labels = counts.labels or None
    return FeedbackJson(
        **vars(counts),
        accuracy=labels and counts.correct / labels,
        zero_shot_accuracy=labels and counts.zero_shot_correct / labels,
    )


def stream_json(info: StreamInfo) -> StreamJson:
    """A stream."""
    feedback = feedback_json(info.feedback)
    accuracy = {"accuracy": feedback.accuracy, "zero_shot_accuracy": feedback.zero_shot_accuracy}
    return StreamJson(**{**vars(info), "feedback": feedback, **accuracy})


def activity_json(activity: StreamActivity) -> ActivityJson:
    """What happened lately; thumbnails in base64."""
    return ActivityJson(
        entropy=finite(activity.entropy),
        zero_shot_entropy=finite(activity.zero_shot_entropy),
        changed_share=finite(activity.changed_share),
        class_mix=list(activity.class_mix),
        changed_images=[
            ChangedImageJson(
                key=image.key,
                label=image.label,
                probability=finite(image.probability),
                zero_shot_label=image.zero_shot_label,
                zero_shot_probability=finite(image.zero_shot_probability),
                time=image.time,
                thumbnail=base64.b64encode(image.thumbnail).decode("ascii"),
            )
            for image in activity.changed_images
        ],
        answers=activity.answers,
    )
