"""The tables and figures of the paper, measured again: what each needs, and its numbers beside the paper's.

An exhibit is a list of numbers. Each knows what the paper reports, which runs measure it (one per seed), and
how it is read from their results.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import ramen.data.catalogue as datasets
from ramen.experiments import paper
from ramen.experiments.experiment import Experiment, plan
from ramen.experiments.paper import Value
from ramen.experiments.presets import find_preset
from ramen.experiments.render import WORDS, Column, Table, duration
from ramen.experiments.variations import BATCH, Variation, experiments, parse_variation
from ramen.methods._registry import describe
from ramen.utils.checks import choice

if TYPE_CHECKING:
    from ramen.experiments.analyses import Bins, CacheTimes

QUICK_IMAGES = 1000
NOTABLE = 0.5  # points: what differs by more gets the list of what could be different
_BARS = ("tent", "note", "sar", "rotta", "tda", "dmn", "watt", "clipartt", "mint", "ramen")
_FULL = 150_000  # images whose time the paper gives
_MIB = 2**20
_CLEAN = {"cifar10c": "cifar-10-batches-py", "cifar100c": "cifar-100-python"}  # CIFAR's own folders
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper."""

    name: str  # "table 5"
    title: str  # what it shows
    data: tuple[str, ...]  # the data sets that it has numbers of
    makes: Callable[["Setup"], Iterator["Number"]]  # the numbers of one of them
    model: str | None = None  # the architecture, if it is not that of the data set's main table

    def architecture(self, data: str) -> str:
        """The architecture of OpenAI's weights that the paper has on this data set."""
        return self.model or paper.SETTINGS[data].model


@dataclass(frozen=True)
class Setup:
    """What the user asked for."""

    data: str
    architecture: str  # the paper's, whose weights are OpenAI's
    model: str | None = None  # what runs instead, as --model of other commands; None for the paper's
    root: str | None = None
    seeds: int = 3
    quick: bool = False  # only 1,000 images, of one seed
    options: Mapping[str, Any] = field(default_factory=dict)  # other fields of Experiment

    def plan(self, method: str, protocol: str = "mixed") -> list[Experiment]:
        """The runs of a method, with the paper's hyper-parameters, whatever the weights."""
        theirs = f"{self.architecture}/openai"
        domains = len(paper.SETTINGS[self.data].domains)
        part = {"per_domain": -(-QUICK_IMAGES // domains)} if self.quick else {}
        return plan(
            [method],
            seeds=range(1 if self.quick else self.seeds),
            preset=find_preset(None, self.data, theirs).name,
            model=self.model or theirs,
            data=self.data,
            root=self.root,
            protocol=protocol,
            protocol_parameters=part,
            **self.options,
        )


@dataclass(frozen=True)
class Number:
    """A number of the paper's, how it is measured, and what was measured."""

    row: str  # what it is of: a method, a variant, a value
    part: str | None  # A domain; None for the exhibit's main numbers
    reported: Value  # the paper's
    runs: Sequence[Experiment] = ()  # one per seed; none if an analysis measures it
    # takes the number from a run's result; None if it is not there
    read: Callable[[Result], float | None] = lambda result: None
    unit: str = "%"  # "%", "s" or "MiB"
    varied: frozenset[str] = frozenset()  # parameters that are not the paper's usual ones, on purpose
    values: tuple[float, ...] = ()  # one per run, once they are measured
    error: float | None = None  # the standard error, if it is known otherwise than from several seeds
    reason: str | None = None  # why it is not comparable with the paper's; None if it is
    causes: tuple[str, ...] = ()  # what could be different, if the difference is notable

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; None for one seed."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured less reported."""
        return None if self.mean is None else self.mean - self.reported.mean

    @property
    def interval(self) -> float:
        """Half of the 95 % interval of the difference; at least the rounding of printed numbers."""
        if self.error is not None:
            return max(paper.FLOOR, 2 * self.error)
        return paper.tolerance(self.deviation, max(1, len(self.values)), self.reported)

    @property
    def notable(self) -> bool:
        """Whether an accuracy differs by more than half a point."""
        return self.unit == "%" and abs(self.difference or 0.0) > NOTABLE

    @property
    def outside(self) -> bool:
        """Whether a comparable accuracy differs by more than the interval."""
        comparable = self.unit == "%" and self.reason is None
        return comparable and abs(self.difference or 0.0) > self.interval + 1e-9

    def text(self, value: float) -> str:
        """A value in the number's unit."""
        if self.unit == "s":
            return duration(value)
        return f"{value:,.0f}" if self.unit == "MiB" else str(replace(self.reported, mean=round(value, 2)))

    def record(self) -> dict[str, Any]:
        """The number in plain values."""
        reported = {key: value for key, value in asdict(self.reported).items() if value not in (None, "")}
        return {
            **{"row": self.row, "part": self.part, "unit": self.unit, "reported": reported},
            **{"measured": self.mean, "deviation": self.deviation, "seeds": len(self.values)},
            **{"difference": self.difference, "interval": self.interval if self.unit == "%" else None},
            **{"not_comparable": self.reason, "what_could_be_different": list(self.causes)},
        }


# -- what each exhibit needs ------------------------------------------------------------------------


def _accuracy(result: Result, domain: str = "average") -> float | None:
    found = result["scores"]["average"] if domain == "average" else result["scores"]["domains"].get(domain)
    return None if found is None else float(found)


def _by_domain(setup: Setup) -> Iterator[Number]:
    """Accuracies of all methods on the mixed stream."""
    for method in paper.TITLES:
        found = paper.values("accuracy", setup.data, model=setup.architecture, method=method)
        runs = setup.plan(method) if found else ()
        for domain, value in found.items():
            part = None if domain == "average" else domain
            yield Number(paper.title(method), part, value, runs, partial(_accuracy, domain=domain))


def _single_and_mixed(setup: Setup) -> Iterator[Number]:
    for protocol in ("single", "mixed"):
        for method in _BARS:
            (value,) = paper.values("bars", setup.data, protocol=protocol, method=method).values()
            yield Number(
                f"{paper.title(method)}, {protocol}", None, value, setup.plan(method, protocol), _accuracy
            )


def _varied(bases: Sequence[Experiment], variation: Variation, value: Any) -> list[Experiment]:
    """The runs of one point of a variation."""
    return experiments(replace(variation, values={value: variation.values[value]}), bases)


def _sweep(setup: Setup, names: Sequence[str], methods: Sequence[str] = ("ramen",)) -> Iterator[Number]:
    """A parameter over the paper's values; Ramen's curves have EntMin as a line."""
    for name in names:
        for method in methods:
            bases, curve = setup.plan(method), paper.curve(setup.data, name, method)
            variation = parse_variation(f"{name}={','.join(map(str, curve))}", bases[0])
            for value in variation.values:
                row = f"{name}={value:g}" if method == "ramen" else f"{paper.title(method)}, {name}={value:g}"
                runs = _varied(bases, variation, value)
                yield Number(row, None, curve[value], runs, _accuracy, varied=variation.parameters)
    if len(methods) == 1 and names != (BATCH,):
        line = paper.reported(setup.data, f"{setup.architecture}/openai", "mixed", "entmin")["average"]
        yield Number("EntMin", None, line, setup.plan("entmin"), _accuracy)


def _variants(setup: Setup, name: str, protocols: Sequence[str]) -> Iterator[Number]:
    """Ramen without parts of it, beside EntMin where the paper has it."""
    for protocol in protocols:
        bases = setup.plan("ramen", protocol)
        variation = parse_variation(name, bases[0])
        for row, value in paper.values(name, setup.data, protocol=protocol).items():
            shown = paper.title(row) + (f", {protocol}" if len(protocols) > 1 else "")
            if row in variation.values:
                runs, varied = _varied(bases, variation, row), variation.parameters
                yield Number(shown, None, value, runs, _accuracy, varied=varied)
            else:
                yield Number(shown, None, value, setup.plan(row, protocol), _accuracy)


def _seconds(result: Result) -> float:
    """Of the whole stream: reading and preprocessing count, as in the paper."""
    cost = result["cost"]
    spent = sum(cost["seconds"][stage] for stage in ("read", "preprocess", "predict"))
    return float(spent * _FULL / cost["images"])


def _mib(result: Result) -> float | None:
    peak = result["cost"]["peak_device_bytes"]
    return None if peak is None else float(peak) / _MIB


def _times(setup: Setup) -> Iterator[Number]:
    for method in paper.TITLES:
        spent = paper.seconds(method)
        if spent is not None:
            runs = setup.plan(method)
            yield Number(paper.title(method), None, Value(spent), runs, _seconds, unit="s")
    uncached = paper.seconds(paper.WITHOUT_CACHE)
    assert uncached is not None
    yield Number(_UNCACHED, None, Value(uncached), unit="s")


def _memory(setup: Setup) -> Iterator[Number]:
    bases = setup.plan("ramen")
    variation = parse_variation("placement", bases[0])
    seconds = paper.values("seconds", setup.data, method="")
    for name, value in paper.values("mib", setup.data).items():
        row, runs, varied = paper.title(name), setup.plan("entmin"), frozenset[str]()
        if name in variation.values:
            row, runs, varied = f"Ramen, {name}", _varied(bases, variation, name), variation.parameters
        yield Number(row, None, value, runs, _mib, unit="MiB", varied=varied)
        yield Number(row, None, seconds[name], runs, _seconds, unit="s", varied=varied)


def _same_domain(result: Result) -> float | None:
    share = result["composition"]["same_domain"]
    return None if share is None else float(share)


def _share(result: Result, row: str, column: str) -> float | None:
    """How much of the support of one domain's images comes from another, in percent."""
    block = result["composition"]
    counts = dict(zip(block["domains"], block["counts"][block["domains"].index(row)], strict=True))
    return 100 * counts[column] / sum(counts.values()) if any(counts.values()) else None


def _composition(setup: Setup) -> Iterator[Number]:
    runs = setup.plan("ramen")
    (same,) = paper.values("same_domain", setup.data).values()
    yield Number("same domain", None, same, runs, _same_domain)
    for row in paper.SETTINGS[setup.data].domains:
        for column, value in paper.values("composition", setup.data, method=row).items():
            yield Number(row, column, value, runs, partial(_share, row=row, column=column))


def _similarity(setup: Setup) -> Iterator[Number]:
    for place, value in paper.values("similarity", setup.data).items():
        yield Number(f"bin {place}", None, value)


_UNCACHED = "Ramen without cache"
_CURVES = ("capacity", "topk", "beta")
_CORRUPTED = ("cifar10c", "cifar100c", "imagenetc5k")
_ALL = (*_CORRUPTED, "domainnet")
_ONE, _DOMAINNET = ("cifar100c",), ("domainnet",)
_WEIGHTING = partial(_variants, name="weights", protocols=("mixed",))
_PARTS = partial(_variants, name="ablation", protocols=("single", "mixed"))
_LR = partial(_sweep, names=("lr",), methods=("ramen", "entmin"))
_SENSITIVITY, _BATCHES = partial(_sweep, names=_CURVES), partial(_sweep, names=(BATCH,))
EXHIBITS = {
    one.name: one
    for one in (
        Exhibit("table 1", "accuracy on mixed corruptions", _CORRUPTED, _by_domain),
        Exhibit("table 2", "accuracy on mixed domains", _DOMAINNET, _by_domain),
        Exhibit("table 3", "time", _ONE, _times),
        Exhibit("table 4", "same-domain pairs by similarity", _ONE, _similarity),
        Exhibit("table 5", "accuracy on mixed corruptions, with deviations", _CORRUPTED, _by_domain),
        Exhibit("table 6", "accuracy on mixed domains, with deviations", _DOMAINNET, _by_domain),
        Exhibit("table 7", "memory and time by the place of the cache", _ONE, _memory),
        Exhibit("table 8", "weights of the support", _ONE, _WEIGHTING),
        Exhibit("table 9", "accuracy with RN101", _ONE, _by_domain, "RN101"),
        Exhibit("figure 2", "single against mixed domains", _ONE, _single_and_mixed),
        Exhibit("figure 3", "domains of the support", _ONE, _composition),
        Exhibit("figure 4", "capacity, k and beta", _ONE, _SENSITIVITY),
        Exhibit("figure 5", "without balance, without consistency", _ONE, _PARTS),
        Exhibit("figure 6", "single against mixed domains", _ALL, _single_and_mixed),
        Exhibit("figure 7", "domains of the support", _ALL, _composition),
        Exhibit("figure 8", "capacity, k and beta", _ALL, _SENSITIVITY),
        Exhibit("figure 9", "learning rate", _ALL, _LR),
        Exhibit("figure 10", "batch size", _ONE, _BATCHES),
    )
}


def find(name: str, data: str | None) -> tuple[Exhibit, str]:
    """An exhibit, and the data set of it that is asked for."""
    exhibit = EXHIBITS[choice("--table or --figure", name, EXHIBITS)]
    if data is None and len(exhibit.data) > 1:
        raise ValueError(f"--data must be one of {', '.join(exhibit.data)} for {name}")
    return exhibit, choice("--data", data or exhibit.data[0], exhibit.data)


def runs_of(numbers: Sequence[Number]) -> list[Experiment]:
    """All runs that the numbers need, each once."""
    return list({run.key(): run for number in numbers for run in number.runs}.values())


# -- weights and data -------------------------------------------------------------------------------


def model_of(architecture: str, weights: str) -> str:
    """What ``--weights`` means, as a name for ``--model``.

    A tag of open_clip or a checkpoint file is for the paper's architecture; a folder is of transformers or in
    open_clip's own format; anything else is the name of a model.
    """
    import open_clip

    path = Path(weights).expanduser()
    if path.is_dir():
        own = (path / "open_clip_config.json").exists()
        return f"local-dir:{path}" if own else f"transformers:{path}"
    if path.is_file() and path.suffix != ".py":
        # OpenAI's file says of itself which activation it has, a checkpoint of the same weights does not
        return f"{architecture}/{path}"
    if weights in open_clip.list_pretrained_tags_by_model(architecture):
        return f"{architecture}/{weights}"
    return weights


@cache
def are_openais(architecture: str, model: str) -> bool:
    """Whether a model has the weights of the paper: by its name, or because the file is OpenAI's own."""
    if paper.architecture(model) == architecture:
        return True
    file = Path(model.removeprefix(f"{architecture}/"))
    if not model.startswith(f"{architecture}/") or not file.is_file():
        return False
    import open_clip

    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return digest in str(open_clip.get_pretrained_cfg(architecture, "openai").get("url", ""))


def fetch(data: str, root: Path, say: Callable[[str], object]) -> None:
    """Make sure that a data set is there: as it is, made of CIFAR's own images beside it, or downloaded."""
    info = datasets.describe(data)
    try:
        datasets.read(data, root).dataset()
        return
    except (ValueError, OSError):
        if any((place / name).exists() for place in (root, root.parent) for name in info.folders):
            raise  # what is there is incomplete: its own message says what is missing
    from ramen.data import download, make_cifar_c

    clean = root / _CLEAN.get(data, "no such folder")
    if clean.exists():
        say(f"making {info.title} of the images in {clean}")
        make_cifar_c(clean, root / info.folders[0], data)
    elif info.downloadable or data == "imagenetc5k":
        say(f"downloading {info.title} to {root}")
        download("imagenetc" if data == "imagenetc5k" else data, root)
    else:
        raise ValueError(f"--root: there is no {info.title} in {root}; it can be had from {info.source}")


# -- measured beside reported -----------------------------------------------------------------------


def beside(numbers: Sequence[Number], results: Mapping[str, Result], setup: Setup) -> list[Number]:
    """The numbers with what was measured; ``results`` by the keys of their runs."""
    found = []
    for number in numbers:
        own = [results[run.key()] for run in number.runs]
        done = [one for one in own if one["kind"] == "run"]
        reasons = [one.get("reason") for one in own if one["kind"] != "run"]
        reasons += [_reason(one, number, setup) for one in done]
        values = tuple(value for one in done if (value := number.read(one)) is not None)
        if done and not values:
            reasons = [
                "this machine's CPU has no such number" if number.unit == "MiB" else "not in the result"
            ]
        reason = next(filter(None, reasons), None)
        found.append(_explained(replace(number, values=values, reason=reason), setup, done))
    return found


def _reason(result: Result, number: Number, setup: Setup) -> str | None:
    """Why a result cannot be compared with the paper's number."""
    theirs = {**result["experiment"], "model": f"{setup.architecture}/openai"}
    other = paper.why_not_comparable({**result, "experiment": theirs}, number.varied)
    return "; ".join(filter(None, (_other_weights(setup), other))) or None


def _other_weights(setup: Setup) -> str | None:
    if setup.model is None or are_openais(setup.architecture, setup.model):
        return None
    return f"the weights are {setup.model}, not {setup.architecture}/openai"


def _explained(one: Number, setup: Setup, results: Sequence[Result] = ()) -> Number:
    """The number with what could be different, if it is notable."""
    return replace(one, causes=tuple(_causes(one, setup, results))) if one.notable else one


def _causes(one: Number, setup: Setup, results: Sequence[Result]) -> Iterator[str]:
    if one.reason is not None:
        yield one.reason
    if one.reported.note:
        yield f"the paper: {one.reported.note}"
    if not results:
        return
    experiment, provenance = results[0]["experiment"], results[0]["provenance"]
    if "made" in provenance["dataset"]["identity"]:
        yield "the corrupted images were made here, with other random draws than the released ones"
    device = provenance["hardware"].get("device", "this machine")
    yield f"the paper's runs were on a V100, these in {experiment['dtype']} on {device}"
    if setup.architecture == "RN101":
        yield "the paper has no hyper-parameters for RN101: those of ViT-B/16 are used"
    method = experiment["method"]
    yield from (f"{paper.title(method)}: {note}" for note in describe(method).notes)
    if one.reported.deviation is None:
        yield "the paper prints no deviation for it, and does not say over how many seeds it is"
    elif len(one.values) == 1:
        yield "one seed"


def with_analyses(
    found: Sequence[Number], setup: Setup, bins: "Bins | None" = None, times: "CacheTimes | None" = None
) -> list[Number]:
    """The numbers that are no runs' filled in: pairs by similarity, time without the cache."""
    if bins is not None:
        fewer = f"{QUICK_IMAGES:,} images" if setup.quick else None
        reason = "; ".join(filter(None, (_other_weights(setup), fewer))) or None
        pairs = zip(found, bins.shares, bins.errors, strict=True)
        filled = [replace(one, values=(share,), error=e, reason=reason) for one, share, e in pairs]
        return [_explained(one, setup) for one in filled]
    assert times is not None
    reason = f"extrapolated from {times.queries} images to {_FULL:,}"
    whole = times.uncached * _FULL
    return [replace(one, values=(whole,), reason=reason) if one.row == _UNCACHED else one for one in found]


def tables(exhibit: Exhibit, data: str, found: Sequence[Number]) -> list[Table]:
    """The main numbers beside the paper's, and the differences by domain."""
    parts = [one for one in found if one.part is not None]
    made = [_main_table(exhibit, data, [one for one in found if one.part is None])]
    return [*made, _part_table(parts)] if parts else made


def _main_table(exhibit: Exhibit, data: str, found: Sequence[Number]) -> Table:
    reasons = dict.fromkeys(one.reason for one in found if one.reason)
    known = [one for one in found if one.difference is not None and one.reason is None]
    notes = []
    if known:
        inside = sum(not one.outside for one in known)
        notes.append(
            f"{inside} of {len(known)} comparable numbers are within the interval of the difference."
        )
    if reasons:
        notes.append(f"Reported numbers are dim, for they are not comparable: {'; '.join(reasons)}.")
    columns = [
        Column("", [one.row for one in found], WORDS),
        Column("unit", [one.unit for one in found], WORDS),
        Column("reported", [one.text(one.reported.mean) for one in found], "s", aside=bool(reasons)),
        Column("measured", [_measured(one) for one in found], "s"),
        Column("difference", [_difference(one) for one in found], "s", marked=[one.outside for one in found]),
        Column("seeds", [len(one.values) or None for one in found], "d"),
    ]
    title = f"{exhibit.name.capitalize()}, {exhibit.title}: {paper.SETTINGS[data].title}"
    records = [one.record() for one in found]
    return Table(title, columns, [*notes, *_causes_note(found)], records)


def _measured(one: Number) -> str:
    if one.mean is None:
        return ""
    if one.unit != "%":
        return one.text(one.mean)
    return f"{one.mean:.2f}" if one.deviation is None else f"{one.mean:.2f} ± {one.deviation:.2f}"


def _difference(one: Number) -> str:
    if one.difference is None or one.mean is None:
        return ""
    if one.unit == "%":
        return f"{one.difference:+z.2f} ± {one.interval:.2f}"
    return f"x {one.mean / one.reported.mean:.2f}"


def _causes_note(found: Sequence[Number]) -> list[str]:
    """What could be different where an accuracy differs by more than half a point."""
    notable = [one.row for one in found if one.notable]
    causes: dict[str, list[str]] = {}
    for one in found:
        for cause in one.causes:
            causes.setdefault(cause, []).append(one.row)
    listed = [
        cause if len(rows) == len(notable) else f"{cause} ({', '.join(rows)})"
        for cause, rows in causes.items()
    ]
    start = f"More than {NOTABLE} points from the paper's: {', '.join(notable)}."
    return [f"{start} What could be different: {'; '.join(listed)}."] if notable else []


def _part_table(found: Sequence[Number]) -> Table:
    """Measured less reported, by domain."""
    rows = list(dict.fromkeys(one.row for one in found))
    by_place = {(one.row, one.part): one for one in found}
    columns = [Column("", rows, WORDS)]
    for part in dict.fromkeys(str(one.part) for one in found):
        cells = [by_place.get((row, part)) for row in rows]
        differences = [cell and cell.difference for cell in cells]
        marked = [cell is not None and cell.outside for cell in cells]
        columns.append(Column(part, differences, "+z.1f", marked=marked))
    return Table("Measured less reported", columns, records=[one.record() for one in found])


def draw(path: Path, title: str, found: Sequence[Number]) -> None:
    """Write a figure per unit of the main numbers: measured with deviations, reported as hollow squares."""
    from ramen.experiments.style import COLOURS, STRONG, legend_above, look, new_figure, save, short

    main = [one for one in found if one.part is None and one.mean is not None]
    for number, unit in enumerate(dict.fromkeys(one.unit for one in main)):
        own = [one for one in main if one.unit == unit]
        places, means = range(len(own)), [one.mean or 0.0 for one in own]
        spreads = [one.deviation or one.error or 0.0 for one in own]
        reported = [one.reported.mean for one in own]
        with look():
            figure, axes = new_figure(7.2, 1.4 + 0.26 * len(own))
            axes.errorbar(means, places, xerr=spreads, fmt="o", color=STRONG, markersize=5, label="measured")
            axes.plot(reported, places, "s", mfc="none", color=COLOURS[0], markersize=7, label="reported")
            axes.set_yticks(places, [short(one.row) for one in own])
            axes.invert_yaxis()
            axes.set(xlabel="seconds" if unit == "s" else unit, xscale="linear" if unit == "%" else "log")
            axes.set_title(short(title, 90))
            axes.grid(axis="x")
            legend_above(axes, ["measured", "reported"])
            save(path.with_stem(f"{path.stem}-{unit}") if number else path, figure)


# -- what it takes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tower:
    """An image tower of the paper: multiplications of a forward pass, bytes of weights, affine parameters."""

    work: float
    weights: float
    affine: int


TOWERS = {
    "ViT-B-32": Tower(4.4e9, 351e6, 39_936),
    "ViT-B-16": Tower(17.5e9, 345e6, 39_936),
    "ViT-L-14": Tower(81e9, 1216e6, 102_400),
    "RN101": Tower(9.8e9, 225e6, 105_472),
}


@dataclass(frozen=True)
class Speed:
    """What passes of a tower cost on this machine, per image."""

    forward: float  # seconds
    backward: float  # seconds, beside the forward pass
    bytes: float  # of memory, beside the weights


def measure(device: str, dtype: str, architecture: str = "ViT-B-32", images: int = 2) -> Speed:
    """Time random weights of a tower on a few images."""
    import open_clip
    import torch

    from ramen.experiments.measure import PeakMemory, seconds
    from ramen.methods import sample_gradients
    from ramen.models.classifier import ZeroShotClassifier

    with torch.device("meta"):  # nothing is drawn for the text tower, which is not timed
        tower = open_clip.create_model(architecture, device="meta", load_weights=False).get_submodule(
            "visual"
        )
    tower = tower.to_empty(device=device).eval()
    config = open_clip.get_model_config(architecture)
    with torch.no_grad():
        for weight in tower.parameters():
            weight.normal_(0, 0.02)
        text = torch.randn(2, config["embed_dim"], device=device)
        classifier = ZeroShotClassifier(tower, text, dtype=dtype)
        pixels = torch.randn(images, 3, *[config["vision_cfg"]["image_size"]] * 2, device=device)
        sample_gradients(classifier, pixels)  # a warm-up
        peak = PeakMemory(classifier.device)
        before = peak.device_bytes() or peak.host_bytes()
        forward = seconds(lambda: classifier.encode(pixels), classifier.device) / images
        both = seconds(lambda: sample_gradients(classifier, pixels), classifier.device) / images
    used = (peak.device_bytes() or peak.host_bytes()) - before
    return Speed(forward, max(0.0, both - forward), max(0, used) / images)


def listing(speed: Speed, seeds: int) -> Table:
    """All exhibits with weights, data, runs, images, and what they take, given the speed of ViT-B/32."""
    facts = [_needs(one, data, speed, seeds) for one in EXHIBITS.values() for data in one.data]
    forms = {**dict.fromkeys(("exhibit", "shows", "data", "weights"), WORDS), "runs": ",d", "images": ",d"}
    forms |= {"hours": ",.1f", "GiB": ",.1f"}
    columns = [Column(head, [fact[head] for fact in facts], form) for head, form in forms.items()]
    note = (
        f"{seeds} seeds, one run after the other. Hours: the counted passes at the speed that ViT-B/32 had "
        "on this machine just now, for other towers by their multiplications. GiB: weights, the paper's full "
        "cache in float16, and the passes of a batch. Exhibits share runs; finished runs are not repeated."
    )
    notes = [note, "`ramen reproduce --table 5 --data cifar100c --root DATA` runs one; --quick tries it."]
    return Table("The paper's tables and figures", columns, notes, records=facts)


def _needs(exhibit: Exhibit, data: str, speed: Speed, seeds: int) -> dict[str, Any]:
    setup = Setup(data, exhibit.architecture(data), root=".", seeds=seeds)
    tower, setting = TOWERS[setup.architecture], paper.SETTINGS[data]
    slower = tower.work / TOWERS["ViT-B-32"].work
    runs = runs_of(list(exhibit.makes(setup)))
    # an analysis embeds the stream once
    passes = [(describe(run.method).forwards, describe(run.method).backwards) for run in runs] or [(1, 0)]
    spent = sum(f * speed.forward + b * speed.backward for f, b in passes) * setting.images * slower
    capacity = max([int(run.parameters.get("capacity", 0)) for run in runs if run.method == "ramen"] or [0])
    cache = 2 * tower.affine * (datasets.describe(data).classes or 0) * capacity
    return {
        "exhibit": exhibit.name,
        "shows": exhibit.title,
        "data": data,
        "weights": f"{setup.architecture}/openai",
        "runs": len(runs),
        "images": len(passes) * setting.images,
        "hours": spent / 3600,
        "GiB": (tower.weights + cache + speed.bytes * slower * setting.batch) / 2**30,
    }
