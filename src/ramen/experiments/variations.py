"""What a sweep varies: one parameter over a grid, or a set of variants from the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ramen.experiments import paper
from ramen.experiments.experiment import Experiment
from ramen.experiments.values import parse_value, plain
from ramen.methods._registry import AUTO, describe
from ramen.utils.checks import nearest

BATCH = "batch"  # a property of the stream, not a parameter of the method

# Variants of Ramen by name: the parameters that each one changes
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "ablation": {
        "w/o PB & DC": {"balance": False, "consistency": False},
        "w/o DC": {"consistency": False},
        "w/o PB": {"balance": False},
        "Ramen": {},
    },
    "weights": {
        "none": {"entropy_weight": False, "similarity_weight": False},
        "similarity": {"entropy_weight": False},
        "entropy": {"similarity_weight": False},
        "both": {},
    },
    "placement": {
        "encoder": {"placement": "encoder"},
        "split": {"placement": "split"},
        "cpu": {"placement": "cpu"},
    },
}
_LABELS = {  # of variants that are not the published method
    "ablation": "{}",
    "weights": "weights: {}",
}
_CAPACITIES = (1 / 15, 2 / 15, 1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 4 / 3, 2)
_TOPK = (1, 2, 5, 10, 20, 50)
_RATES = (0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)
_BATCHES = (1, 2, 5, 10, 20, 50, 100)
GRIDS = ("capacity", "topk", "beta", "lr", BATCH)
_FLOATS = ("beta", "lr", "guard")  # of those that a method may choose itself
# What grids are built around for parameters that the method chooses itself: the paper's on CIFAR-100-C
_CENTRES = {"capacity": 750, "topk": 5, "beta": 5.0, "lr": 1e-2}


@dataclass(frozen=True)
class Variation:
    """What is varied, over which values, and the origin of these values.

    Attributes:
        name: A parameter, ``batch``, or a key of ``VARIANTS``.
        values: The parameters to set, by the value or variant that a table shows.
        origin: Where the values come from, in words.
    """

    name: str
    values: Mapping[Any, Mapping[str, Any]]
    origin: str

    @property
    def parameters(self) -> frozenset[str]:
        """Everything that differs between the points."""
        return frozenset(name for settings in self.values.values() for name in settings)


def parse_variation(text: str, base: Experiment) -> Variation:
    """``"topk=5,10"``, a parameter that has a grid such as ``"topk"``, or a set such as ``"ablation"``.

    Args:
        text: What to vary.
        base: The experiment whose other settings are kept.
    """
    name, equals, listed = text.partition("=")
    name = name.strip()
    if name in VARIANTS and not equals:
        if base.method != "ramen":
            raise ValueError(f"--vary {name}: these are variants of ramen, got method {base.method!r}")
        return Variation(name, VARIANTS[name], "the paper's variants")
    known = {*describe(base.method).defaults, BATCH} - {"seed"}
    if name not in known:
        hint = nearest(name, {*known, *VARIANTS})
        raise ValueError(f"--vary: method {base.method!r} has no parameter {name!r}{hint}")
    if equals:
        given = [parse_value(part.strip()) for part in listed.split(",") if part.strip()]
        values, origin = given, "as given"
    else:
        values, origin = _grid(name, base)
    if len(set(map(str, values))) < 2:
        raise ValueError(f"--vary {name} must have at least two values, got {listed or 'none'!r}")
    typed = (_typed(base.method, name, value) for value in values)
    return Variation(name, {value: {name: value} for value in dict.fromkeys(typed)}, origin)


def _typed(method: str, name: str, value: Any) -> Any:
    """Whole numbers of a float parameter as floats, so that 5 and 5.0 are one experiment."""
    default = describe(method).defaults.get(name)
    is_float = isinstance(default, float) or (default == AUTO and name in _FLOATS)
    return float(value) if is_float and type(value) is int else value


def _grid(name: str, base: Experiment) -> tuple[list[Any], str]:
    if name not in GRIDS:
        raise ValueError(
            f"--vary {name} needs values: {name}=A,B,... Only these have default values: {', '.join(GRIDS)}"
        )
    curve = paper.curve(base.data, name)
    if curve:
        return list(curve), f"the paper's values ({next(iter(curve.values())).source})"
    own = base.all_parameters()
    own |= {key: centre for key, centre in _CENTRES.items() if own.get(key) == AUTO}
    if name == "capacity":
        sizes = [max(round(share * own["capacity"]), own.get("topk", 1)) for share in _CAPACITIES]
        return sizes, f"1/15 to 2 times {own['capacity']}, as in the paper on CIFAR-100-C"
    if name == "topk":
        most = own.get("capacity", max(_TOPK))
        return sorted({k for k in (*_TOPK, own["topk"]) if k <= most}), "the paper's for most data sets"
    if name == "beta":
        return [float(value) for value in range(11)], "the paper's values"
    if name == "lr":
        return [float(f"{share * own['lr']:.6g}") for share in _RATES], f"0.5 to 2 times {own['lr']}"
    return list(_BATCHES), "the paper's values on CIFAR-100-C"


def experiments(variation: Variation, bases: Sequence[Experiment]) -> list[Experiment]:
    """The experiments of all points, for each of the bases, which differ in their seeds.

    A point with the values of the base is the base itself, so that its result is shared.
    """
    return [
        _varied(base, variation.name, value, settings)
        for value, settings in variation.values.items()
        for base in bases
    ]


def _varied(base: Experiment, name: str, value: Any, settings: Mapping[str, Any]) -> Experiment:
    own = base.all_parameters()
    changed = {key: new for key, new in settings.items() if key != BATCH and own[key] != plain(new)}
    label = _LABELS[name].format(value) if changed and name in _LABELS else base.label
    return replace(
        base,
        parameters={**base.parameters, **changed},
        overrides={**base.overrides, **changed},
        batch=settings.get(BATCH, base.batch),
        label=label,
    )
