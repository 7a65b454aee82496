"""Experiments: the settings of one run, and how options become a list of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramen.experiments.presets import NO_PRESET, find_preset
from ramen.experiments.values import from_plain, overrides_by_method, parse_pairs, plain
from ramen.methods._registry import describe, imported, load_plugins
from ramen.utils import checks
from ramen.utils.commands import IMPORT, Read

if TYPE_CHECKING:
    from ramen.experiments.tune import TunedValues

# The data sets, stream orders and templates are imported where they are looked up: every command reads the
# fields of Experiment for its options, and `--help` must not load numpy.


@dataclass(frozen=True)
class Experiment:
    """The settings of one run: everything that decides its result.

    A field with help is also an option of the commands.

    Attributes:
        method: A registered method.
        data_options: Severity, domains, and the data set's other options.
        protocol: An alias is replaced by the protocol that it stands for.
        protocol_parameters: ``limit``, ``per_domain``, and the protocol's own.
        parameters: The method's, from the preset and the user; all others have their defaults.
        preset: The preset's name.
        overrides: What the user set in place of the preset's values.
        label: A variant's name in tables; None for the method's own.
        seed: Decides the stream and the method's random draws.
        tuned: What chose some of the parameters, as ``TunedValues.record`` returns it; None if nothing did.
        imports: What brings the method, if it is not one of this package.
        source: The file with its hash, or the package with its version, that the method comes from; None for
            this package's own. It is found out, not given.
        recorded_model: What results say of the model: of a file of one's own, its name with its hash, never
            its folder. It is found out, not given.
    """

    method: str
    model: Annotated[
        str,
        typer.Option(
            help="ARCH/TAG of open_clip, FILE.py:FUNCTION of yours, or another form that `ramen models list` "
            "shows. Default: the preset's."
        ),
    ]
    data: Annotated[str, typer.Option(help="A data set; `ramen data list` shows them. Default: tiny.")] = (
        "tiny"
    )
    root: Annotated[str | None, typer.Option(help="The data set's folder or file.")] = None
    data_options: Annotated[
        Mapping[str, Any],
        Read(list[str], lambda given: parse_pairs("--data-set", given)),
        typer.Option("--data-set", help="KEY=VALUE: an option of the data set. Repeatable."),
    ] = field(default_factory=dict)
    protocol: Annotated[
        str,
        typer.Option(help="The order of the stream: mixed, single, ... or an alias: non_iid, ..."),
    ] = "mixed"
    protocol_parameters: Annotated[
        Mapping[str, Any],
        Read(list[str], lambda given: parse_pairs("--protocol-set", given)),
        typer.Option("--protocol-set", help="KEY=VALUE: a parameter of the protocol. Repeatable."),
    ] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    seed: int = 0
    batch: Annotated[int, typer.Option(min=1, help="Images per batch. Default: the preset's, or 100.")] = 100
    device: Annotated[str, typer.Option(help="cpu, cuda, ... Default: cuda if available.")] = "cpu"
    dtype: Annotated[
        str,
        typer.Option(help="The dtype of the encoder's weights. Default: float16 on cuda, else float32."),
    ] = "float32"
    templates: Annotated[str, typer.Option(help="A set of prompt templates. Default: the preset's.")] = (
        "ensemble"
    )
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Feed a sliding window of this many images; only the newest batch counts."),
    ] = None
    tuned: Mapping[str, Any] | None = None
    imports: Annotated[tuple[str, ...], Read(list[str], imported), IMPORT] = ()
    source: str | None = None
    recorded_model: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot be run."""
        load_plugins(self.imports)
        import ramen.data.catalogue as datasets
        from ramen.data.streams.stream import COMMON, resolve_protocol
        from ramen.models import prompts
        from ramen.models.names import full_name, recorded_name
        from ramen.utils.checks import check_dtype_name

        _known(f"method {self.method!r}", self.parameters, set(describe(self.method).defaults) - {"seed"})
        options = datasets.describe(self.data).options
        _known(f"data set {self.data!r}", self.data_options, options, what="option")
        datasets.check_root(self.data, self.root)
        protocol, parameters = resolve_protocol(self.protocol, self.protocol_parameters)
        # the same stream is the same experiment, whatever it is called
        object.__setattr__(self, "protocol", protocol.name)
        object.__setattr__(self, "protocol_parameters", parameters)
        _known(f"protocol {self.protocol!r}", self.protocol_parameters, {*protocol.parameters, *COMMON})
        checks.integer("seed", self.seed, 0)
        checks.integer("batch", self.batch, 1)
        if self.window is not None and checks.integer("window", self.window, 1) < self.batch:
            raise ValueError(f"window must be at least batch={self.batch}, got {self.window}")
        check_dtype_name(self.dtype)
        prompts.check_templates(self.templates)
        object.__setattr__(self, "source", describe(self.method).source)
        object.__setattr__(self, "model", full_name(self.model))
        object.__setattr__(self, "recorded_model", recorded_name(self.model))
        if self.tuned is not None:
            from ramen.experiments.tune import check_stream

            check_stream(self)

    def load_method(self) -> None:
        """Make its method and its model known, in a process that is not the one that planned it."""
        from ramen.models.names import recorded_name

        load_plugins(self.imports)
        for what, planned, found in (
            (f"method {self.method!r}", self.source, describe(self.method).source),
            (f"model {self.model!r}", self.recorded_model, recorded_name(self.model)),
        ):
            if found != planned:
                raise ValueError(f"{what} has changed: the run was planned with {planned}, this is {found}")

    def identity(self) -> dict[str, Any]:
        """The settings that a result records, in plain values: all but root, preset and imports."""
        return {
            "model": self.recorded_model,
            "templates": self.templates,
            "data": self.data,
            "data_options": plain(self.data_options),
            "protocol": self.protocol,
            "protocol_parameters": plain(self.protocol_parameters),
            "method": self.method,
            "parameters": plain(self.parameters),
            "label": self.label,
            "seed": self.seed,
            "batch": self.batch,
            "device": self.device,
            "dtype": self.dtype,
            **({} if self.window is None else {"window": self.window}),  # keys of runs without one stay
            **({} if self.tuned is None else {"tuned": self.tuned["search"]}),  # likewise
            **({} if self.source is None else {"source": self.source}),  # likewise
        }

    def all_parameters(self) -> dict[str, Any]:
        """All parameters of the method, given or by default, in plain values."""
        everything = {**describe(self.method).defaults, **self.parameters}
        return dict(plain({name: value for name, value in everything.items() if name != "seed"}))

    def key(self) -> str:
        """Twelve hex digits; the same whether a default value is given or not."""
        whole = {**self.identity(), "parameters": self.all_parameters()}
        text = json.dumps(whole, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def path(self, out: Path) -> Path:
        """The file of its result."""
        return Path(out) / self.data / self.protocol / f"{self.method}-seed{self.seed}-{self.key()}.json"

    @property
    def name(self) -> str:
        """What its run is called while it runs."""
        return f"{self.label or self.method} seed {self.seed}"

    @classmethod
    def from_result(cls, result: Mapping[str, Any], root: str | None = None) -> "Experiment":
        """The experiment of a result, to run again on the data in ``root``."""
        block = dict(result["experiment"])
        for name in ("parameters", "data_options", "protocol_parameters"):
            block[name] = from_plain(block[name])
        overrides = from_plain(result["overrides"])
        for name in ("tuned", "source"):  # the result's own block has all of the one, the class of the other
            block.pop(name, None)
        tuned = result.get("tuned")
        return cls(root=root, preset=result["preset"], overrides=overrides, tuned=tuned, **block)


def _known(owner: str, given: Mapping[str, Any], valid: Any, what: str = "parameter") -> None:
    for name in given:
        if name not in valid:
            raise ValueError(f"{owner} has no {what} {name!r}{checks.nearest(name, valid)}")


def plan(
    methods: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    settings: Sequence[str] = (),
    preset: str | None = None,
    tuned: "TunedValues | None" = None,
    **given: Any,
) -> list[Experiment]:
    """The experiments of several methods and seeds, method by method.

    Args:
        methods: Names of registered methods.
        seeds: One run per method and seed.
        settings: ``"topk=10"`` for every method that has it, ``"ramen.topk=10"`` for one; they override the
            preset.
        preset: A name, a file, or ``"none"``; if None, the data set's preset, if it has one.
        tuned: What a search has chosen, for streams that have neither domains nor seeds in common with it;
            it overrides the preset, and settings override it.
        given: Fields of ``Experiment``; None, or none, for the preset's value or the default.
    """
    import ramen.data.catalogue as datasets
    from ramen.data.streams.stream import resolve_protocol
    from ramen.models.names import recorded_name

    load_plugins(given.get("imports") or ())
    given = {"data": "tiny", **{name: value for name, value in given.items() if value is not None}}
    names, data = list(dict.fromkeys(methods)), given["data"]
    own = overrides_by_method(names, settings)
    chosen = find_preset(preset, data, given.get("model"))
    if "model" not in given and chosen.model is None:
        raise ValueError(f"model must be given: there is no preset for data set {data!r}")
    facts = {name: getattr(chosen, name) for name in ("model", "batch", "templates")}
    base = {**{name: fact for name, fact in facts.items() if fact is not None}, **given}
    base["root"] = None if base.get("root") is None else str(base["root"])
    options = base["data_options"] = dict(base.get("data_options", {}))
    if chosen.severity is not None and "severity" in datasets.describe(data).options:
        options.setdefault("severity", chosen.severity)
    order, base["protocol_parameters"] = resolve_protocol(
        base.get("protocol", "mixed"), base.get("protocol_parameters", {})
    )
    base["protocol"] = order.name
    rows = {name: {} if tuned is None else tuned.row(name) for name in names}
    records = {
        name: None if tuned is None else tuned.record(name, recorded_name(base["model"])) for name in names
    }
    return [
        Experiment(
            method=method,
            parameters={**chosen.row(method, order.name), **rows[method], **own[method]},
            preset=None if chosen is NO_PRESET else chosen.name,
            overrides=own[method],
            seed=seed,
            tuned=records[method],
            **base,
        )
        for method in names
        for seed in seeds
    ]
