"""What methods cost: time relative to a plain forward pass, passes, memory."""

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
# Methods of several equal rounds are timed for fewer of them; the time is multiplied.
SHORTENED: Mapping[str, Mapping[str, Any]] = {"watt": {"rounds": 1}}


@dataclass(frozen=True)
class MethodCost:
    """The cost of one method; ``seconds`` are those of each timed batch."""

    seconds: tuple[float, ...]
    forwards: int  # passes per image, as the method states
    backwards: int
    memory_bytes: int  # the most that it ever stores of the stream
    peak_device_bytes: int | None
    peak_host_bytes: int | None


def method_cost(
    name: str,
    classifier: ZeroShotClassifier,
    warm_up: Sequence[Tensor],
    timed: Sequence[Tensor],
    parameters: Mapping[str, Any] | None = None,
) -> MethodCost:
    """The cost of a fresh method on some batches; those of ``warm_up`` are not timed.

    Memories that are as large as a batch according to the method's record are so here, unless ``parameters``
    set them.
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
    # a peak of the whole process could be that of an earlier method
    host = peak.host_bytes() if peak.host_scope == "run" else None
    return MethodCost(tuple(times), forwards, backwards, whole.memory_bytes(), peak.device_bytes(), host)


def forward_times(
    classifier: ZeroShotClassifier, warm_up: Sequence[Tensor], timed: Sequence[Tensor]
) -> list[float]:
    """Seconds of a plain forward pass of each timed batch: the unit of cost."""

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
    progress: ReportProgress = no_progress,
) -> dict[str, Any]:
    """Time, passes and memory of methods on the first batches of a stream, in a table.

    Args:
        classifier: What they adapt.
        stream: Its first images are used; all methods get the same.
        methods: Names; by default all. A method that cannot run on this classifier is listed with the reason.
        parameters: Of the methods that do not run with their defaults.
        warm_up: Batches at the start, which are not timed.
        batches: Batches that are timed; the table shows their median.
        batch: Images per batch.
        progress: Called with the step's name, how much of it is done, and how much there is.
    """
    checks.integer("warm_up", warm_up, 0)
    checks.integer("batches", batches, 1)
    names = list_methods() if methods is None else list(methods)
    for name in names:
        describe(name)  # raises for an unknown name before anything starts
    parts = stream.batches(batch, drop_last=True)[: warm_up + batches]
    if len(parts) < warm_up + batches:
        raise ValueError(
            f"the stream must have {warm_up} + {batches} whole batches of {batch}, got {len(parts)}"
        )
    images = [classifier.preprocess(stream.read(part)).to(classifier.device) for part in parts]
    unit = statistics.median(forward_times(classifier, images[:warm_up], images[warm_up:]))
    found: dict[str, dict[str, Any]] = {}
    for done, name in enumerate(names):
        progress(f"timing {name}", done, len(names))
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
    progress("timing", len(names), len(names))
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
    heads = ["method", "ms per image", "x forward", "passes (F / B)", "kept", "peak, device", "peak, host"]
    return text_table(
        "Cost",
        [*heads, "paper, x CLIP"],
        rows,
        f"Median of {data['batches']} batches after {data['warm_up']}, without reading and preprocessing. "
        "kept: the most that the method ever stores of the stream. peak: all memory in use during its run, "
        "with the model; on the host that of the whole process, with what earlier methods may have left. "
        "paper: with reading, on one V100.",
        *notes,
    )
