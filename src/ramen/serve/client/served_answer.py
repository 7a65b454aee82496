"""What a service replies, as plain records."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from ramen.serve.client.errors import UnexpectedReplyError
from ramen.serve.engine.stream_info import EngineStatistics, FeedbackCounts, StreamInfo
from ramen.serve.http.backend import ServedModel
from ramen.serve.result import Result

Record = TypeVar("Record")


@dataclass(frozen=True)
class ServedAnswer:
    """The answer of a service for one image.

    Attributes:
        stream: The stream it belongs to.
        id: Names the answer when its true label is sent later (``feedback``). Empty for an error.
        key: The path of a file, the caller's own key, or "image 17".
        label: The predicted class; None if there is an error.
        probability: Of that class.
        zero_shot_label: What the model says without adaptation.
        zero_shot_probability: Of that class.
        top: Up to five classes with their probabilities, the best first.
        probabilities: Of all classes by name, if they were asked for.
        adapted: False if the image was answered zero-shot.
        changed: Whether adaptation changed the label.
        support: How many stored images the answer is based on; None if the method retrieves none.
        state_version: How many images the stream had seen after this image's batch.
        entropy: Of the answer's probabilities, in nats.
        zero_shot_entropy: The same without adaptation.
        error: Why there is no answer; it names the key.
        queued_ms: How long the image waited at the service.
        computed_ms: How long its batch took.
    """

    stream: str
    id: str
    key: str
    label: str | None
    probability: float | None
    zero_shot_label: str | None
    zero_shot_probability: float | None
    top: tuple[tuple[str, float], ...]
    probabilities: dict[str, float] | None
    adapted: bool
    changed: bool
    support: int | None
    state_version: int
    entropy: float | None
    zero_shot_entropy: float | None
    error: str | None = None
    queued_ms: float = 0.0
    computed_ms: float = 0.0

    @classmethod
    def failed(cls, stream: str, key: str, error: str) -> "ServedAnswer":
        """For an image that the service did not accept, or that could not be read and was not sent."""
        return cls(
            stream, "", key, None, None, None, None, (), None, False, False, None, 0, None, None, error
        )

    def to_result(self) -> Result:
        """The same as a predictor's result."""
        return Result(**{field.name: getattr(self, field.name) for field in fields(Result)})


def answer_from_json(stream: str, key: str, values: Mapping[str, Any]) -> ServedAnswer:
    """An answer of a reply, with the caller's own key in place of what was sent."""
    top = tuple((entry["label"], entry["probability"]) for entry in values["top"])
    error, sent_key = values.get("error"), values.get("key")
    if error is not None and isinstance(sent_key, str):
        error = key + error.removeprefix(sent_key) if error.startswith(sent_key) else error
    known = {"stream": stream, "key": key, "top": top, "error": error}
    return record_from_json(ServedAnswer, {**values, **known})


def stream_from_json(values: Mapping[str, Any]) -> StreamInfo:
    """A stream."""
    feedback = record_from_json(FeedbackCounts, values["feedback"])
    return record_from_json(StreamInfo, {**values, "classes": tuple(values["classes"]), "feedback": feedback})


def model_from_json(values: Mapping[str, Any]) -> ServedModel:
    """What is served."""
    height, width = values["image_size"]
    return record_from_json(
        ServedModel, {**values, "classes": tuple(values["classes"]), "image_size": (height, width)}
    )


def statistics_from_json(values: Mapping[str, Any]) -> EngineStatistics:
    """The whole service."""
    return record_from_json(EngineStatistics, values)


def feedback_from_json(values: Mapping[str, Any]) -> FeedbackCounts:
    """How right the answers of a stream were."""
    return record_from_json(FeedbackCounts, values)


def record_from_json(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """A record of the fields that it knows: a newer service may send more."""
    known = fields(kind)  # type: ignore[arg-type]  # a dataclass
    missing = [f.name for f in known if f.name not in values and f.default is MISSING]
    if missing:
        raise UnexpectedReplyError(f"the reply has no {', '.join(missing)}: is this a Ramen service?")
    return kind(**{field.name: values[field.name] for field in known if field.name in values})
