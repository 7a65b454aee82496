"""What methods cost: time beside that of a plain forward pass, passes, memory."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.analysis import paper
from ramen.experiments.plan.values import plain
from ramen.experiments.run.measure import PeakMemory, seconds
from ramen.experiments.studies.study_result import ReportProgress, no_progress, number, study, text_table
from ramen.experiments.tables.table import Table
from ramen.methods._registry import create, describe, list_methods
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.byte_sizes import readable_bytes
from ramen.utils.numerics import plain_numerics

NAME = "cost"
# Timed for a part of their equal rounds; the time is multiplied.
SHORTENED: Mapping[str, Mapping[str, Any]] = {"watt": {"rounds": 1}}


@dataclass(frozen=True)
class Cost:
    """What one method took; times are of batches, in seconds, for all of its work."""

    seconds: tuple[float, ...]
    forwards: int  # passes an image, as the method states
    backwards: int
    memory_bytes: int  # the most it will ever keep of the stream
    peak_device_bytes: int | None
    peak_host_bytes: int | None


def method_cost(
    name: str,
    classifier: ZeroShotClassifier,
    warm_up: Sequence[Tensor],
    timed: Sequence[Tensor],
    parameters: Mapping[str, Any] | None = None,
) -> Cost:
    """A fresh method on some batches; the first ones, which bring its memory into use, are not timed.

    Memories that the record takes to be as large as a batch are so, unless ``parameters`` say otherwise.
    """
    batch = len(timed[0])
    given = {**dict.fromkeys(describe(name).batch_sized, batch), **(parameters or {})}
    whole = create(name, classifier, **given)
    shortened = {key: value for key, value in SHORTENED.get(name, {}).items() if key not in given}
    method = create(name, classifier, **given, **shortened) if shortened else whole
    share = whole.passes()[0] / method.passes()[0]
    peak = PeakMemory(classifier.device)
    for images in warm_up:
        method.predict(images)
    times = [
        share * seconds(lambda images=images: method.predict(images), classifier.device)  # type: ignore[misc]
        for images in timed
    ]
    forwards, backwards = whole.passes()
    # a peak of the whole process would be that of whichever method came before
    host = peak.host_bytes() if peak.host_scope == "run" else None
    return Cost(tuple(times), forwards, backwards, whole.memory_bytes(), peak.device_bytes(), host)


def forward_times(
    classifier: ZeroShotClassifier, warm_up: Sequence[Tensor], timed: Sequence[Tensor]
) -> list[float]:
    """Seconds of a plain forward pass of each timed batch, the unit of cost."""

    @plain_numerics()
    @torch.no_grad()
    def forward(images: Tensor) -> None:
        classifier.logits(classifier.encode(images))

    for images in warm_up:
        forward(images)
    return [seconds(lambda images=images: forward(images), classifier.device) for images in timed]  # type: ignore[misc]


def cost_study(
    classifier: ZeroShotClassifier,
    stream: Stream,
    methods: Sequence[str] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    warm_up: int = 2,
    batches: int = 5,
    batch: int = 100,
    advance: ReportProgress = no_progress,
) -> dict[str, Any]:
    """Time, passes and memory of methods on the first batches of a stream, in a table.

    Args:
        classifier: What they adapt.
        stream: Its first images; all methods get the same.
        methods: Names; all registered ones without it. One that this classifier cannot serve is told.
        parameters: For each method that has others than its defaults.
        warm_up: Batches that come before and are not timed.
        batches: Batches that are timed; the table has their median.
        batch: Images in a batch.
        advance: Called with what is going on, how much of it is done, and how much there is.
    """
    checks.integer("warm_up", warm_up, 0)
    checks.integer("batches", batches, 1)
    names = list_methods() if methods is None else list(methods)
    for name in names:
        describe(name)  # a wrong name is told before anything starts
    parts = stream.batches(batch, drop_last=True)[: warm_up + batches]
    if len(parts) < warm_up + batches:
        raise ValueError(
            f"the stream has {len(parts)} whole batches of {batch}, needed are {warm_up} + {batches}"
        )
    images = [classifier.preprocess(stream.read(part)).to(classifier.device) for part in parts]
    unit = statistics.median(forward_times(classifier, images[:warm_up], images[warm_up:]))
    found: dict[str, dict[str, Any]] = {}
    for done, name in enumerate(names):
        advance(f"timing {name}", done, len(names))
        try:
            cost = method_cost(
                name, classifier, images[:warm_up], images[warm_up:], (parameters or {}).get(name)
            )
        except MissingPartError as error:
            found[name] = {"reason": str(error)}
            continue
        median = statistics.median(cost.seconds)
        found[name] = {
            **asdict(cost),
            "seconds": list(cost.seconds),
            "ms_an_image": 1000 * median / batch,
            "units": median / unit,
            "parameters": plain((parameters or {}).get(name, {})),
        }
    advance("timing", len(names), len(names))
    data = {
        "batch": batch,
        "batches": batches,
        "warm_up": warm_up,
        "device": str(classifier.device),
        "dtype": str(classifier.dtype).removeprefix("torch."),
        "classes": classifier.num_classes,
        "affine_parameters": len(classifier.encoder.base),
        "forward_ms_an_image": 1000 * unit / batch,
        "methods": found,
    }
    title = f"What methods cost on {classifier.device}, batches of {batch}"
    return study(NAME, title, [_table(data)], data)


def _table(data: dict[str, Any]) -> Table:
    printed = paper.reported_times()
    rows = [["a plain forward pass", number(data["forward_ms_an_image"], 3), "1.00", "1 / 0", *[""] * 4]]
    notes = []
    for name, cost in data["methods"].items():
        times = f"{printed[name].seconds / printed['clip'].seconds:.2f}" if name in printed else ""
        if "reason" in cost:
            rows.append([name, *["-"] * 6, times])
            notes.append(f"{name} cannot run on this model: {cost['reason']}.")
            continue
        sizes = [cost[key] for key in ("memory_bytes", "peak_device_bytes", "peak_host_bytes")]
        rows.append(
            [
                name,
                number(cost["ms_an_image"], 3),
                number(cost["units"], 2),
                f"{cost['forwards']} / {cost['backwards']}",
                *("-" if size is None else readable_bytes(size) for size in sizes),
                times,
            ]
        )
    heads = ["method", "ms an image", "x forward", "passes (F / B)", "keeps", "peak, device", "peak, host"]
    return text_table(
        "Cost",
        [*heads, "paper, x CLIP"],
        rows,
        f"Median of {data['batches']} batches after {data['warm_up']}, without reading and preprocessing. "
        "keeps: the most that it ever keeps of the stream. peak: all memory in use while it ran, the model's "
        "included; on the host that of the whole process, with what methods before it may have left. The "
        "paper's: with reading, on one V100.",
        *notes,
    )
