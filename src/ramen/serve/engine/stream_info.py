"""What an engine reports about itself and its streams: plain values, fit for JSON."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FeedbackCounts:
    """How right the answers were that a true label was sent for.

    Attributes:
        labels: How many true labels were matched with an answer.
        correct: How many of these answers were right.
        zero_shot_correct: How many would have been right without adaptation.
        unknown: Labels for answers that are not known, or no more: only the last ones are.
    """

    labels: int = 0
    correct: int = 0
    zero_shot_correct: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class StreamInfo:
    """One stream.

    Attributes:
        name: Its name.
        classes: Its class names.
        method: The method that adapts to it.
        images: Answered since the stream was created or reset.
        changed: Of these, how many adaptation gave another label.
        fallbacks: Of these, how many were answered zero-shot because the adaptation failed.
        errors: Images that could not be decoded.
        entries: Entries in its memory; None while it is on disk, or if the method keeps none.
        capacity: The most entries that its memory can hold; None likewise.
        memory_bytes: What its memory takes now; 0 while it is on disk.
        resident: Whether it is in memory, and not only on disk.
        created: When it was created, in seconds since 1970.
        last_used: When its last image came, likewise; None if none has come.
        feedback: How right its answers were.
        recovered: What had to be repaired when its state was last read, in words.
    """

    name: str
    classes: tuple[str, ...]
    method: str
    images: int
    changed: int
    fallbacks: int
    errors: int
    entries: int | None
    capacity: int | None
    memory_bytes: int
    resident: bool
    created: float
    last_used: float | None
    feedback: FeedbackCounts
    recovered: str | None = None


@dataclass(frozen=True)
class StreamActivity:
    """What the dashboard shows of one stream, over its last answers (at most 1,000).

    Attributes:
        entropy: Mean entropy of the answers, in nats.
        zero_shot_entropy: The same without adaptation.
        changed_share: Share of answers that adaptation changed.
        class_mix: How often each class was answered, the most frequent first, at most 20.
        changed_images: The last ones that changed, the newest first; empty unless they are kept.
        answers: How many answers these are.
    """

    entropy: float | None
    zero_shot_entropy: float | None
    changed_share: float | None
    class_mix: tuple[tuple[str, int], ...]
    changed_images: tuple["ChangedImage", ...]
    answers: int = 0


@dataclass(frozen=True)
class ChangedImage:
    """An image that adaptation gave another label.

    Attributes:
        key: The client's name for it.
        label: The answer, with its probability.
        zero_shot_label: The answer without adaptation, with its probability.
        time: When, in seconds since 1970.
        thumbnail: A small JPEG.
    """

    key: str
    label: str
    probability: float
    zero_shot_label: str
    zero_shot_probability: float
    time: float
    thumbnail: bytes


@dataclass(frozen=True)
class EngineStatistics:
    """The whole engine. Counters only grow; rates and percentiles are over the last ten seconds.

    Attributes:
        images: Answered.
        requests: Answered.
        batches: Computed.
        changed: Images that adaptation gave another label.
        fallbacks: Images answered zero-shot because the adaptation failed.
        undecodable: Images that could not be decoded.
        overloaded: Requests refused because too much was waiting.
        expired: Requests that were not answered in time.
        cancelled: Requests whose client went away.
        waiting_images: Images that wait or are being answered now.
        waiting_bytes: Their bytes.
        queue_images: The most that may wait.
        queue_bytes: Likewise in bytes.
        images_per_second: Answered.
        latency_ms: Percentiles "p50", "p90", "p99" from arrival to answer; empty if nothing was answered.
        compute_ms: The same of a batch.
        mean_batch: Images per batch.
        streams: How many there are.
        resident_streams: How many of these are in memory.
        resident_bytes: What their memories take.
        streams_budget: What they may take.
        parked: How many times a stream was put to disk.
        store_failures: How many times a state could not be written.
    """

    images: int
    requests: int
    batches: int
    changed: int
    fallbacks: int
    undecodable: int
    overloaded: int
    expired: int
    cancelled: int
    waiting_images: int
    waiting_bytes: int
    queue_images: int
    queue_bytes: int
    images_per_second: float
    latency_ms: dict[str, float]
    compute_ms: dict[str, float]
    mean_batch: float | None
    streams: int
    resident_streams: int
    resident_bytes: int
    streams_budget: int
    parked: int
    store_failures: int
