"""Other names of protocols: those that publications and other benchmarks use, with their parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Alias:
    """A name that stands for a protocol with some of its parameters set."""

    protocol: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.protocol, *(f"{name}={value}" for name, value in self.parameters.items())])


# NOTE's construction of correlated labels, as in ROID's benchmark; and that of StatA
_NOTE = {"slots": "classes", "balance": True, "at_least": 10}
_STATA = {"slots": "batches", "within": "shuffled"}

ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        # the settings of ROID's benchmark
        "mixed_domains": Alias("mixed"),
        "reset_each_shift": Alias("single"),
        "mixed_domains_correlated": Alias("correlated", _NOTE),
        "mixed_correlated": Alias("correlated", _NOTE),
        "note": Alias("correlated", {**_NOTE, "domains": "successive"}),
        "class_sorted": Alias("by_class", {"order": "ascending"}),  # if it is given no delta
        # MoETTA's, with data sets that are one: the data set ``potpourri``
        "potpourri": Alias("mixed"),
        # CoTTA's
        "continual_rounds": Alias("cyclic", {"images": "repeated"}),
        # RoTTA's
        "dirichlet": Alias("correlated"),
        "non_iid": Alias("correlated"),
        "practical": Alias("correlated", {"domains": "successive"}),
        # StatA's
        "stata_low": Alias("correlated", {**_STATA, "delta": 0.1}),
        "stata_medium": Alias("correlated", {**_STATA, "delta": 0.01}),
        "stata_high": Alias("correlated", {**_STATA, "delta": 0.001}),
        "stata_separate": Alias("by_class"),
    }
)
