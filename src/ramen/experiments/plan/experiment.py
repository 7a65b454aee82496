"""Experiments: the settings of one run, and how options become a list of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ramen.data.registry as datasets
from ramen.data.streams.stream import COMMON, resolve_protocol
from ramen.experiments.plan.presets import NO_PRESET, find_preset
from ramen.experiments.plan.values import from_plain, overrides_by_method, plain
from ramen.experiments.tune.tuned_values import TunedValues, refuse_tuning_stream
from ramen.methods._registry import describe
from ramen.models import prompts
from ramen.utils import checks
from ramen.utils.dtype_names import check_dtype_name

BATCH = 100  # if no preset sets it


@dataclass(frozen=True)
class Experiment:
    """The settings of one run: everything that decides its result.

    Attributes:
        method: A registered method.
        model: As ``ramen.models.by_name.load_model`` takes it.
        data: A name of ``ramen.data.registry``.
        root: The data set's folder or file.
        data_options: Severity, domains, and the data set's other options.
        protocol: The order of the stream; an alias is replaced by the protocol that it stands for.
        protocol_parameters: ``limit``, ``per_domain``, and the protocol's own.
        parameters: The method's, from the preset and the user; all others have their defaults.
        preset: The preset's name.
        overrides: What the user set in place of the preset's values.
        label: A variant's name in tables; None for the method's own.
        seed: Decides the stream and the method's random draws.
        batch: Images per batch.
        device: Where to compute.
        dtype: The dtype of the encoder's weights.
        templates: A name in ``ramen.prompts.TEMPLATE_SETS``.
        window: If given, the method gets the last so many images with each batch; only the batch's answers
            count.
        tuned: What chose some of the parameters, as ``TunedValues.record`` returns it; None if nothing did.
    """

    method: str
    model: str
    data: str
    root: str | None = None
    data_options: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = "mixed"
    protocol_parameters: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    seed: int = 0
    batch: int = BATCH
    device: str = "cpu"
    dtype: str = "float32"
    templates: str = "ensemble"
    window: int | None = None
    tuned: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot be run."""
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

    def identity(self) -> dict[str, Any]:
        """The settings that a result records, in plain values: all but root and preset."""
        return {
            "model": self.model,
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

    @classmethod
    def from_result(cls, result: Mapping[str, Any], root: str | None = None) -> "Experiment":
        """The experiment of a result, to run again on the data in ``root``."""
        block = dict(result["experiment"])
        for name in ("parameters", "data_options", "protocol_parameters"):
            block[name] = from_plain(block[name])
        overrides = from_plain(result["overrides"])
        block.pop("tuned", None)  # the result's own block has all of it
        tuned = result.get("tuned")
        return cls(root=root, preset=result["preset"], overrides=overrides, tuned=tuned, **block)


def _known(owner: str, given: Mapping[str, Any], valid: Any, what: str = "parameter") -> None:
    for name in given:
        if name not in valid:
            raise ValueError(f"{owner} has no {what} {name!r}{checks.nearest(name, valid)}")


def plan(
    methods: Sequence[str],
    *,
    model: str | None = None,
    data: str = "tiny",
    root: str | Path | None = None,
    protocol: str = "mixed",
    seeds: Sequence[int] = (0,),
    preset: str | None = None,
    settings: Sequence[str] = (),
    data_options: Mapping[str, Any] | None = None,
    protocol_parameters: Mapping[str, Any] | None = None,
    batch: int | None = None,
    templates: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    window: int | None = None,
    tuned: TunedValues | None = None,
) -> list[Experiment]:
    """The experiments of several methods and seeds, method by method.

    Args:
        methods: Names of registered methods.
        model: As ``load_model`` takes it; the preset's if None.
        data: A data set.
        root: Its folder or file.
        protocol: The order of the stream, or an alias.
        seeds: One run per method and seed.
        preset: A name, a file, or ``"none"``; if None, the data set's preset, if it has one.
        settings: ``"topk=10"`` for every method that has it, ``"ramen.topk=10"`` for one; they override the
            preset.
        data_options: Options of the data set; ``severity`` overrides the preset's.
        protocol_parameters: Parameters of the protocol, ``limit`` and ``per_domain``.
        batch: Images per batch; if None, the preset's, or 100.
        templates: A template set; if None, the preset's, or the ensemble.
        device: Where to compute.
        dtype: The dtype of the encoder's weights.
        window: As for ``Experiment``.
        tuned: What a search has chosen, for streams that have neither domains nor seeds in common with it;
            it overrides the preset, and settings override it.
    """
    names = list(dict.fromkeys(methods))
    overrides = overrides_by_method(names, settings)
    chosen = find_preset(preset, data, model)
    if model is None and chosen.model is None:
        raise ValueError(f"model must be given: there is no preset for data set {data!r}")
    order, order_parameters = resolve_protocol(protocol, protocol_parameters or {})
    options = dict(data_options or {})
    if chosen.severity is not None and "severity" in datasets.describe(data).options:
        options.setdefault("severity", chosen.severity)
    used_model = model or str(chosen.model)
    rows = {name: {} if tuned is None else tuned.row(name) for name in names}
    records = {name: None if tuned is None else tuned.record(name, used_model) for name in names}
    for record in filter(None, records.values()):
        for seed in seeds:  # domains that are not named are checked when the stream is made
            refuse_tuning_stream(record, data, seed, options.get("domains"))
    return [
        Experiment(
            method=method,
            model=used_model,
            data=data,
            root=None if root is None else str(root),
            data_options=options,
            protocol=order.name,
            protocol_parameters=order_parameters,
            parameters={**chosen.row(method, order.name), **rows[method], **overrides[method]},
            preset=None if chosen is NO_PRESET else chosen.name,
            overrides=overrides[method],
            seed=seed,
            batch=_first(batch, chosen.batch, BATCH),
            device=device,
            dtype=dtype,
            templates=templates or chosen.templates or "ensemble",
            window=window,
            tuned=records[method],
        )
        for method in names
        for seed in seeds
    ]


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
