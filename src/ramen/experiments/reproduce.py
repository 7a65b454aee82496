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
_WEIGHTS = {"ViT-B-32": 351e6, "ViT-B-16": 345e6, "ViT-L-14": 1216e6, "RN101": 225e6}  # bytes of a tower
_CLEAN = {"cifar10c": "cifar-10-batches-py", "cifar100c": "cifar-100-python"}  # CIFAR's own folders
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper.

    Attributes:
        name: ``"table 5"``.
        title: What it shows.
        data: The data sets that it has numbers of.
        makes: The numbers of one of them.
        model: The architecture, if it is not that of the data set's main table.
    """

    name: str
    title: str
    data: tuple[str, ...]
    makes: Callable[["Setup"], Iterator["Number"]]
    model: str | None = None

    def architecture(self, data: str) -> str:
        """The architecture of OpenAI's weights that the paper has on this data set."""
        return self.model or paper.SETTINGS[data].model


@dataclass(frozen=True)
class Setup:
    """What the user asked for.

    Attributes:
        data: The data set.
        architecture: The paper's, whose weights are OpenAI's.
        model: What runs instead, as ``--model`` of other commands; None for the paper's.
        root: The folder of the data.
        seeds: How many.
        quick: Only 1,000 images, of one seed.
        options: Other fields of ``Experiment``.
    """

    data: str
    architecture: str
    model: str | None = None
    root: str | None = None
    seeds: int = 3
    quick: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

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
    """A number of the paper's, and how it is measured.

    Attributes:
        row: What it is of: a method, a variant, a value.
        part: A domain; None for the exhibit's main numbers.
        reported: The paper's.
        runs: One per seed.
        read: Takes the number from a run's result; None if it is not there.
        unit: ``"%"``, ``"s"`` or ``"MiB"``.
        varied: Parameters that are not the paper's usual ones, on purpose.
    """

    row: str
    part: str | None
    reported: Value
    runs: tuple[Experiment, ...]
    read: Callable[[Result], float | None]
    unit: str = "%"
    varied: frozenset[str] = frozenset()


# -- what each exhibit needs ------------------------------------------------------------------------


def _accuracy(result: Result, domain: str) -> float | None:
    found = result["scores"]["average"] if domain == "average" else result["scores"]["domains"].get(domain)
    return None if found is None else float(found)


def _by_domain(setup: Setup) -> Iterator[Number]:
    """Accuracies of all methods on the mixed stream."""
    for method in paper.TITLES:
        found = paper.values("accuracy", setup.data, model=setup.architecture, method=method)
        runs = tuple(setup.plan(method)) if found else ()
        for domain, value in found.items():
            part = None if domain == "average" else domain
            yield Number(paper.title(method), part, value, runs, partial(_accuracy, domain=domain))


_average = partial(_accuracy, domain="average")


def _single_and_mixed(setup: Setup) -> Iterator[Number]:
    for protocol in ("single", "mixed"):
        for method in _BARS:
            (value,) = paper.values("bars", setup.data, protocol=protocol, method=method).values()
            runs = tuple(setup.plan(method, protocol))
            yield Number(f"{paper.title(method)}, {protocol}", None, value, runs, _average)


def _varied(bases: Sequence[Experiment], variation: Variation, value: Any) -> tuple[Experiment, ...]:
    """The runs of one point of a variation."""
    return tuple(experiments(replace(variation, values={value: variation.values[value]}), bases))


def _sweep(setup: Setup, names: Sequence[str], methods: Sequence[str] = ("ramen",)) -> Iterator[Number]:
    """A parameter over the paper's values; Ramen's curves have EntMin as a line."""
    for name in names:
        for method in methods:
            bases, curve = setup.plan(method), paper.curve(setup.data, name, method)
            variation = parse_variation(f"{name}={','.join(map(str, curve))}", bases[0])
            for value in variation.values:
                row = f"{name}={value:g}" if method == "ramen" else f"{paper.title(method)}, {name}={value:g}"
                runs = _varied(bases, variation, value)
                yield Number(row, None, curve[value], runs, _average, varied=variation.parameters)
    if len(methods) == 1 and names != (BATCH,):
        line = paper.reported(setup.data, f"{setup.architecture}/openai", "mixed", "entmin")["average"]
        yield Number("EntMin", None, line, tuple(setup.plan("entmin")), _average)


def _variants(setup: Setup, name: str, protocols: Sequence[str]) -> Iterator[Number]:
    """Ramen without parts of it, beside EntMin where the paper has it."""
    for protocol in protocols:
        bases = setup.plan("ramen", protocol)
        variation = parse_variation(name, bases[0])
        for row, value in paper.values(name, setup.data, protocol=protocol).items():
            shown = paper.title(row) + (f", {protocol}" if len(protocols) > 1 else "")
            if row in variation.values:
                runs, varied = _varied(bases, variation, row), variation.parameters
                yield Number(shown, None, value, runs, _average, varied=varied)
            else:
                yield Number(shown, None, value, tuple(setup.plan(row, protocol)), _average)


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
            runs = tuple(setup.plan(method))
            yield Number(paper.title(method), None, Value(spent), runs, _seconds, unit="s")
    uncached = paper.seconds(paper.WITHOUT_CACHE)
    assert uncached is not None
    yield Number(_UNCACHED, None, Value(uncached), (), _nothing, unit="s")


def _memory(setup: Setup) -> Iterator[Number]:
    bases = setup.plan("ramen")
    variation = parse_variation("placement", bases[0])
    seconds = paper.values("seconds", setup.data, method="")
    for name, value in paper.values("mib", setup.data).items():
        row, runs, varied = paper.title(name), tuple(setup.plan("entmin")), frozenset[str]()
        if name in variation.values:
            row, runs, varied = f"Ramen, {name}", _varied(bases, variation, name), variation.parameters
        yield Number(row, None, value, runs, _mib, unit="MiB", varied=varied)
        yield Number(row, None, seconds[name], runs, _seconds, unit="s", varied=varied)


def _same_domain(result: Result) -> float | None:
    block = result["composition"]
    return None if block is None or block["same_domain"] is None else float(block["same_domain"])


def _share(result: Result, row: str, column: str) -> float | None:
    """How much of the support of one domain's images comes from another, in percent."""
    block = result["composition"]
    if block is None or not {row, column} <= set(block["domains"]):
        return None
    counts = block["counts"][block["domains"].index(row)]
    return 100 * counts[block["domains"].index(column)] / sum(counts) if sum(counts) else None


def _composition(setup: Setup) -> Iterator[Number]:
    runs = tuple(setup.plan("ramen"))
    (same,) = paper.values("same_domain", setup.data).values()
    yield Number("same domain", None, same, runs, _same_domain)
    for row in paper.SETTINGS[setup.data].domains:
        for column, value in paper.values("composition", setup.data, method=row).items():
            yield Number(row, column, value, runs, partial(_share, row=row, column=column))


def _similarity(setup: Setup) -> Iterator[Number]:
    for place, value in paper.values("similarity", setup.data).items():
        yield Number(f"bin {place}", None, value, (), _nothing)


def _nothing(result: Result) -> None:
    return None


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


@dataclass(frozen=True)
class Measured:
    """A number of the paper's beside what was measured.

    Attributes:
        values: One per run; empty if there is none.
        error: The standard error, if it is known otherwise than from several seeds.
        reason: Why it is not comparable with the paper's; None if it is.
        causes: What could be different, if the difference is notable.
    """

    number: Number
    values: tuple[float, ...]
    error: float | None = None
    reason: str | None = None
    causes: tuple[str, ...] = ()

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
        return None if self.mean is None else self.mean - self.number.reported.mean

    @property
    def interval(self) -> float:
        """Half of the 95 % interval of the difference; at least the rounding of printed numbers."""
        if self.error is not None:
            return max(paper.FLOOR, 2 * self.error)
        return paper.tolerance(self.deviation, max(1, len(self.values)), self.number.reported)

    @property
    def notable(self) -> bool:
        """Whether an accuracy differs by more than half a point."""
        return self.number.unit == "%" and self.difference is not None and abs(self.difference) > NOTABLE


def beside(numbers: Sequence[Number], results: Mapping[str, Result], setup: Setup) -> list[Measured]:
    """The numbers with what was measured; ``results`` by the keys of their runs."""
    found = []
    for number in numbers:
        own = [results[run.key()] for run in number.runs]
        missing = next((one.get("reason") for one in own if one["kind"] != "run"), None)
        done = [one for one in own if one["kind"] == "run"]
        read = [value for one in done if (value := number.read(one)) is not None]
        reason = missing or next(filter(None, (_reason(one, number, setup) for one in done)), None)
        if done and not read:
            reason = "this machine's CPU has no such number" if number.unit == "MiB" else "not in the result"
        one = Measured(number, tuple(read), reason=reason)
        found.append(replace(one, causes=tuple(_causes(one, done, setup))) if one.notable else one)
    return found


def _reason(result: Result, number: Number, setup: Setup) -> str | None:
    """Why a result cannot be compared with the paper's number."""
    experiment = dict(result["experiment"])
    if setup.model is not None and are_openais(setup.architecture, setup.model):
        experiment["model"] = f"{setup.architecture}/openai"
    if setup.model is not None and experiment["model"] == setup.model:
        return f"the weights are {setup.model}, not {setup.architecture}/openai"
    return paper.why_not_comparable({**result, "experiment": experiment}, number.varied)


def _causes(one: Measured, results: Sequence[Result], setup: Setup) -> Iterator[str]:
    """What could be different where a number is not the paper's."""
    if one.reason is not None:
        yield one.reason
    if one.number.reported.note:
        yield f"the paper: {one.number.reported.note}"
    if not results:
        return
    first = results[0]
    identity = first["provenance"]["dataset"]["identity"]
    if "made" in identity:
        yield "the corrupted images were made here, with other random draws than the released ones"
    hardware, dtype = first["provenance"]["hardware"], first["experiment"]["dtype"]
    yield f"the paper's runs were on a V100, these in {dtype} on {hardware.get('device', 'this machine')}"
    method = first["experiment"]["method"]
    if setup.architecture == "RN101":
        yield "the paper has no hyper-parameters for RN101: those of ViT-B/16 are used"
    yield from (f"{paper.title(method)}: {note}" for note in describe(method).notes)
    if one.number.reported.deviation is None:
        yield "the paper prints no deviation for it, and does not say over how many seeds it is"
    elif len(one.values) == 1:
        yield "one seed"


def with_analyses(
    found: Sequence[Measured], setup: Setup, bins: "Bins | None" = None, times: "CacheTimes | None" = None
) -> list[Measured]:
    """The numbers that are no runs' filled in: pairs by similarity, time without the cache."""
    made = []
    for place, one in enumerate(found):
        if bins is not None:
            other = setup.model is not None and not are_openais(setup.architecture, setup.model)
            reason = f"the weights are {setup.model}, not {setup.architecture}/openai" if other else None
            reason = reason or (f"{QUICK_IMAGES:,} images" if setup.quick else None)
            one = replace(one, values=(bins.shares[place],), error=bins.errors[place], reason=reason)
            if one.notable:
                one = replace(one, causes=tuple(_causes(one, (), setup)))
        elif times is not None and one.number.row == _UNCACHED:
            reason = f"extrapolated from {times.queries} images to {_FULL:,}"
            one = replace(one, values=(times.uncached * _FULL,), reason=reason)
        made.append(one)
    return made


def tables(exhibit: Exhibit, data: str, found: Sequence[Measured]) -> list[Table]:
    """The main numbers beside the paper's, and the differences by domain."""
    main = [one for one in found if one.number.part is None]
    made = [_main_table(exhibit, data, main)]
    parts = [one for one in found if one.number.part is not None]
    if parts:
        made.append(_part_table(parts))
    return made


def _main_table(exhibit: Exhibit, data: str, found: Sequence[Measured]) -> Table:
    reasons = list(dict.fromkeys(one.reason for one in found if one.reason))
    outside = [_outside(one) for one in found]
    known = [one for one in found if one.difference is not None and one.reason is None]
    inside = f"{len(known) - sum(outside)} of {len(known)} comparable numbers are within the interval"
    notes = [f"{inside} of the difference."] if known else []
    notes += (
        [f"Reported numbers are dim, for they are not comparable: {'; '.join(reasons)}."] if reasons else []
    )
    notes += _causes_note(found)
    shown = [_difference(one) for one in found]
    reported = [_text(one.number, one.number.reported.mean) for one in found]
    columns = [
        Column("", [one.number.row for one in found], WORDS),
        Column("unit", [one.number.unit for one in found], WORDS),
        Column("reported", reported, "s", aside=bool(reasons)),
        Column("measured", [_measured_text(one) for one in found], "s"),
        Column("difference", shown, "s", marked=outside),
        Column("seeds", [len(one.values) or None for one in found], "d"),
    ]
    title = f"{exhibit.name.capitalize()}, {exhibit.title}: {paper.SETTINGS[data].title}"
    return Table(title, columns, notes, records=[record(one) for one in found])


def _causes_note(found: Sequence[Measured]) -> list[str]:
    """What could be different where an accuracy differs by more than half a point."""
    notable = [one.number.row for one in found if one.notable]
    if not notable:
        return []
    causes: dict[str, list[str]] = {}
    for one in found:
        for cause in one.causes:
            causes.setdefault(cause, []).append(one.number.row)
    listed = [
        cause if len(rows) == len(notable) or len(notable) == 1 else f"{cause} ({', '.join(rows)})"
        for cause, rows in causes.items()
    ]
    return [
        f"More than {NOTABLE} points from the paper's: {', '.join(notable)}. What could be different: "
        f"{'; '.join(listed)}."
    ]


def _part_table(found: Sequence[Measured]) -> Table:
    """Measured less reported, by domain."""
    rows = list(dict.fromkeys(one.number.row for one in found))
    parts = list(dict.fromkeys(str(one.number.part) for one in found))
    by_place = {(one.number.row, one.number.part): one for one in found}
    columns = [Column("", rows, WORDS)]
    for part in parts:
        cells = [by_place.get((row, part)) for row in rows]
        differences = [None if cell is None else cell.difference for cell in cells]
        marked = [cell is not None and _outside(cell) for cell in cells]
        columns.append(Column(part, differences, "+z.1f", marked=marked))
    return Table("Measured less reported", columns, records=[record(one) for one in found])


def _outside(one: Measured) -> bool:
    comparable = one.reason is None and one.difference is not None and one.number.unit == "%"
    return comparable and abs(one.difference or 0.0) > one.interval + 1e-9


def _text(number: Number, value: float) -> str:
    if number.unit == "s":
        return duration(value)
    return f"{value:,.0f}" if number.unit == "MiB" else str(replace(number.reported, mean=round(value, 2)))


def _measured_text(one: Measured) -> str:
    if one.mean is None:
        return ""
    if one.number.unit != "%":
        return _text(one.number, one.mean)
    return f"{one.mean:.2f}" if one.deviation is None else f"{one.mean:.2f} ± {one.deviation:.2f}"


def _difference(one: Measured) -> str:
    if one.difference is None or one.mean is None:
        return ""
    if one.number.unit == "%":
        return f"{one.difference:+z.2f} ± {one.interval:.2f}"
    return f"x {one.mean / one.number.reported.mean:.2f}"


def record(one: Measured) -> dict[str, Any]:
    """A number in plain values."""
    number = one.number
    return {
        **{"row": number.row, "part": number.part, "unit": number.unit},
        "reported": {key: value for key, value in asdict(number.reported).items() if value not in (None, "")},
        **{"measured": one.mean, "deviation": one.deviation, "seeds": len(one.values)},
        **{"difference": one.difference, "interval": one.interval if number.unit == "%" else None},
        **{"not_comparable": one.reason, "what_could_be_different": list(one.causes)},
    }


def draw(path: Path, title: str, found: Sequence[Measured]) -> None:
    """Write the figure of the main numbers: measured with its deviation, reported as a hollow square."""
    from ramen.experiments.style import COLOURS, STRONG, legend_above, look, new_figure, save, short

    main = [one for one in found if one.number.part is None and one.mean is not None]
    units = list(dict.fromkeys(one.number.unit for one in main))
    with look():
        for unit in units:
            own = [one for one in main if one.number.unit == unit]
            figure, axes = new_figure(7.2, 1.4 + 0.26 * len(own))
            places = range(len(own))
            spreads = [one.deviation or one.error or 0.0 for one in own]
            reported = [one.number.reported.mean for one in own]
            means = [one.mean or 0.0 for one in own]
            axes.errorbar(means, places, xerr=spreads, fmt="o", color=STRONG, markersize=5, label="measured")
            axes.plot(reported, places, "s", mfc="none", color=COLOURS[0], markersize=7, label="reported")
            axes.set_yticks(places, [short(one.number.row) for one in own])
            axes.invert_yaxis()
            axes.set(xlabel={"%": "%", "s": "seconds", "MiB": "MiB"}[unit])
            if unit != "%":
                axes.set_xscale("log")
            axes.set_title(short(title, 90))
            axes.grid(axis="x")
            legend_above(axes, ["measured", "reported"])
            save(path if unit == units[0] else path.with_stem(f"{path.stem}-{unit}"), figure)


# -- what it takes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """What passes of a tower cost on this machine, per image."""

    forward: float  # seconds
    backward: float  # seconds, beside the forward pass
    bytes: float  # of memory, beside the weights
    affine: int  # parameters that are adapted


def measure_all(device: str, dtype: str, say: Callable[[str], object]) -> dict[str, Speed]:
    """The speeds of all towers; that of ViT-L/14 by its arithmetic beside ViT-B/16, as it takes long."""
    found = {}
    for architecture in ("ViT-B-32", "ViT-B-16", "RN101"):
        say(f"timing {architecture} on this machine")
        found[architecture] = measure(architecture, device, dtype)
    base, large = _vision("ViT-B-16"), _vision("ViT-L-14")
    passes, activations = (more / less for more, less in zip(large, base, strict=True))
    one = found["ViT-B-16"]
    found["ViT-L-14"] = Speed(one.forward * passes, one.backward * passes, one.bytes * activations, 102_400)
    return found


def _vision(architecture: str) -> tuple[float, float]:
    """Multiplications of a transformer's pass and its activations, but for constants."""
    import open_clip

    facts = open_clip.get_model_config(architecture)["vision_cfg"]
    tokens, width = (facts["image_size"] / facts["patch_size"]) ** 2 + 1, facts["width"]
    layers = facts["layers"] * tokens
    return layers * (12 * width**2 + 2 * tokens * width), layers * width


def measure(architecture: str, device: str, dtype: str, images: int = 1) -> Speed:
    """Time random weights of an architecture on a few images."""
    import torch

    from ramen.experiments.measure import PeakMemory, seconds
    from ramen.methods import sample_gradients
    from ramen.models.names import load_model

    classifier = load_model(f"random:{architecture}", ["cat", "dog"], "single", device, dtype)
    assert classifier.image_size is not None
    pixels = torch.randn(images, 3, *classifier.image_size).to(classifier.device)
    with torch.no_grad():
        if classifier.device.type == "cuda":
            sample_gradients(classifier, pixels)  # a warm-up; on a CPU it would take as long as what is timed
        peak = PeakMemory(classifier.device)
        before = peak.device_bytes() or peak.host_bytes()
        forward = seconds(lambda: classifier.encode(pixels), classifier.device) / images
        both = seconds(lambda: sample_gradients(classifier, pixels), classifier.device) / images
    used = (peak.device_bytes() or peak.host_bytes()) - before
    return Speed(forward, max(0.0, both - forward), used / images, len(classifier.encoder.base))


def listing(speeds: Mapping[str, Speed], seeds: int) -> Table:
    """All exhibits with weights, data, runs, images, and what they take at these speeds, by architecture."""
    rows = [(one, data) for one in EXHIBITS.values() for data in one.data]
    setups = [Setup(data, one.architecture(data), root=".", seeds=seeds) for one, data in rows]
    facts = [_needs(one, setup, speeds) for (one, _), setup in zip(rows, setups, strict=True)]
    columns = [
        Column("shows", [one.title for one, _ in rows], WORDS),
        *(Column(head, [fact[head] for fact in facts], WORDS) for head in ("data", "weights")),
        *(Column(head, [fact[head] for fact in facts], ",d") for head in ("runs", "images")),
        *(Column(head, [fact[head] for fact in facts], ",.1f") for head in ("hours", "GiB")),
    ]
    columns.insert(0, Column("exhibit", [one.name for one, _ in rows], WORDS))
    note = (
        f"{seeds} seeds, one run after the other. Hours: the counted passes at the speed that towers had on "
        "this machine just now. GiB: weights, the paper's full cache in float16, and the passes of a batch. "
        "Exhibits share runs, and finished runs are not repeated."
    )
    notes = [note, "`ramen reproduce --table 5 --data cifar100c --root DATA` runs one; --quick tries it."]
    return Table("The paper's tables and figures", columns, notes, records=facts)


def _needs(exhibit: Exhibit, setup: Setup, speeds: Mapping[str, Speed]) -> dict[str, Any]:
    speed, setting = speeds[setup.architecture], paper.SETTINGS[setup.data]
    runs = runs_of(list(exhibit.makes(setup)))
    # an analysis embeds the stream once
    passes = [(describe(run.method).forwards, describe(run.method).backwards) for run in runs] or [(1, 0)]
    spent = sum(f * speed.forward + b * speed.backward for f, b in passes) * setting.images
    capacity = max([int(run.parameters.get("capacity", 0)) for run in runs if run.method == "ramen"] or [0])
    cache = 2 * speed.affine * (datasets.describe(setup.data).classes or 0) * capacity
    return {
        "exhibit": exhibit.name,
        "data": setup.data,
        "weights": f"{setup.architecture}/openai",
        "runs": len(runs),
        "images": len(passes) * setting.images,
        "hours": spent / 3600,
        "GiB": (_WEIGHTS[setup.architecture] + cache + speed.bytes * setting.batch) / 2**30,
    }
