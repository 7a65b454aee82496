"""What is known of a stream beside what its method has learned: a small JSON in its folder."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ramen.serve.engine.stream_info import FeedbackCounts
from ramen.serve.result import Result

_COUNTS = ("images", "changed", "fallbacks", "errors", "memory_bytes")
_FEEDBACK = tuple(one.name for one in fields(FeedbackCounts))


@dataclass(frozen=True)
class StreamFacts:
    """Counts and classes of a stream; each change makes a new object.

    Attributes:
        classes: Its own classes; None if it has those of the model.
        created: When, in seconds since 1970.
        last_used: When its last image came; None if none has come.
        images: Answered since it was created or reset.
        changed: Of these, how many adaptation gave another label.
        fallbacks: Of these, how many were answered zero-shot because the adaptation failed.
        errors: Images without an answer.
        feedback: How right its answers were.
        memory_bytes: What its memory took when it was last in memory.
    """

    classes: tuple[str, ...] | None = None
    created: float = field(default_factory=time.time)
    last_used: float | None = None
    images: int = 0
    changed: int = 0
    fallbacks: int = 0
    errors: int = 0
    feedback: FeedbackCounts = field(default_factory=FeedbackCounts)
    memory_bytes: int = 0

    def with_answers(self, results: list[Result], fallbacks: int) -> "StreamFacts":
        """After a batch."""
        errors = sum(result.error is not None for result in results)
        return replace(
            self,
            last_used=time.time(),
            images=self.images + len(results) - errors,
            changed=self.changed + sum(result.changed for result in results),
            fallbacks=self.fallbacks + fallbacks,
            errors=self.errors + errors,
        )

    def forgotten(self) -> "StreamFacts":
        """After a reset."""
        return StreamFacts(classes=self.classes, created=self.created, last_used=self.last_used)

    def to_json(self) -> bytes:
        """As a file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "StreamFacts":
        """What ``to_json`` returned; ValueError if that is not what it is."""
        try:
            values = json.loads(content)
            return cls._from_values(values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the facts of a stream cannot be read: {error!r}") from None

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> "StreamFacts":
        counts = {name: int(values[name]) for name in _COUNTS}
        classes, last_used, feedback = values["classes"], values["last_used"], values["feedback"]
        return cls(
            classes=None if classes is None else tuple(map(str, classes)),
            created=float(values["created"]),
            last_used=None if last_used is None else float(last_used),
            feedback=FeedbackCounts(**{name: int(feedback[name]) for name in _FEEDBACK}),
            **counts,
        )
