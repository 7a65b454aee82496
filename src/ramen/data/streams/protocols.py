"""Protocols: functions that put candidate images into an order, each with a record of facts about it."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramen.data.streams.aliases import ALIASES
from ramen.utils import checks
from ramen.utils.random_draws import IntArray


@dataclass(frozen=True)
class Candidates:
    """The images that a stream may use, domain after domain; the arrays have one entry per image."""

    domain_names: tuple[str, ...]
    domain: IntArray
    label: IntArray
    severities: tuple[int, ...] = ()  # ascending, if each image exists at several severities

    def by_domain(self, order: Iterable[int] | None = None) -> Iterator[IntArray]:
        """The indices of each domain's candidates; skips domains without any."""
        for number in range(len(self.domain_names)) if order is None else order:
            indices = np.flatnonzero(self.domain == number)
            if len(indices):
                yield indices


@dataclass(frozen=True)
class Order:
    """The order that a protocol chose."""

    indices: IntArray  # into the candidates
    resets: tuple[int, ...] = ()  # positions in the stream before which a method is reset
    severity: IntArray | None = None  # per image, if the candidates have several
    rounds: tuple[int, ...] = ()  # positions at which the domains begin again, if they do


@dataclass(frozen=True)
class Protocol:
    """What is known about a protocol."""

    name: str
    description: str
    arrange: Callable[..., Order]
    parameters: Mapping[str, Any]  # its own parameters with their defaults
    exhaustive: bool  # whether every candidate comes exactly once, whatever the parameters
    severities: bool = False  # whether it needs one data set per severity

    def __str__(self) -> str:
        listed = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items()) or "none"
        return f"{self.name}: {self.description}\n  parameters: {listed}"


PROTOCOLS: dict[str, Protocol] = {}


def protocol(description: str, **facts: bool) -> Callable[[Callable[..., Order]], Callable[..., Order]]:
    """Decorator that registers a protocol under the name of the function."""

    def register(arrange: Callable[..., Order]) -> Callable[..., Order]:
        own = list(inspect.signature(arrange).parameters.values())[2:]  # after candidates and draws
        name = arrange.__name__
        PROTOCOLS[name] = Protocol(
            name, description, arrange, {p.name: p.default for p in own}, **({"exhaustive": True} | facts)
        )
        return arrange

    return register


def find_protocol(name: str) -> Protocol:
    """The protocol of that name, or that the alias stands for."""
    return resolve_protocol(name, {})[0]


def resolve_protocol(name: str, parameters: Mapping[str, Any]) -> tuple[Protocol, dict[str, Any]]:
    """The protocol that a name or an alias stands for, and its parameters: the given ones override an alias.

    >>> found, parameters = resolve_protocol("stata_high", {"slots": 20})
    >>> found.name, parameters
    ('correlated', {'slots': 20, 'within': 'shuffled', 'delta': 0.001})
    """
    alias = ALIASES.get(name)
    if alias is not None:
        return PROTOCOLS[alias.protocol], {**alias.parameters, **parameters}
    if name not in PROTOCOLS:
        raise ValueError(f"there is no protocol {name!r}{checks.nearest(str(name), [*PROTOCOLS, *ALIASES])}")
    return PROTOCOLS[name], dict(parameters)
