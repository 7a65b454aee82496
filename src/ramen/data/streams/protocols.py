"""What a protocol is: a function from a pool of pictures to an order, and a record of facts about it."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramen.utils import checks
from ramen.utils.random_draws import Whole


@dataclass(frozen=True)
class Pool:
    """The pictures that a stream may use; the arrays go together, domain after domain."""

    names: tuple[str, ...]  # of the domains
    domain: Whole
    label: Whole
    severities: tuple[int, ...] = ()  # in rising order, where each picture is there in several

    def domains(self, order: Iterable[int] | None = None) -> Iterator[Whole]:
        """The places of each domain's pictures; domains without any are left out."""
        for number in range(len(self.names)) if order is None else order:
            places = np.flatnonzero(self.domain == number)
            if len(places):
                yield places


@dataclass(frozen=True)
class Order:
    """What a protocol answers."""

    places: Whole  # in the pool
    resets: tuple[int, ...] = ()  # positions in the stream before which a method starts afresh
    severity: Whole | None = None  # of each picture, where the pool has several


@dataclass(frozen=True)
class Protocol:
    """The record of a protocol."""

    name: str
    description: str
    arrange: Callable[..., Order]
    parameters: Mapping[str, Any]  # its own, with their defaults
    exhaustive: bool  # whether each picture of the pool comes exactly once, whatever the parameters
    severities: bool = False  # whether it needs a data set for each severity

    def __str__(self) -> str:
        listed = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items()) or "none"
        return f"{self.name}: {self.description}\n  parameters: {listed}"


PROTOCOLS: dict[str, Protocol] = {}


def protocol(description: str, **facts: bool) -> Callable[[Callable[..., Order]], Callable[..., Order]]:
    """Function decorator: enter a protocol under the function's name."""

    def enter(arrange: Callable[..., Order]) -> Callable[..., Order]:
        own = list(inspect.signature(arrange).parameters.values())[2:]  # behind pool, draws
        name = arrange.__name__
        PROTOCOLS[name] = Protocol(
            name, description, arrange, {p.name: p.default for p in own}, **({"exhaustive": True} | facts)
        )
        return arrange

    return enter


def find_protocol(name: str) -> Protocol:
    """The record of that name."""
    if name not in PROTOCOLS:
        raise ValueError(f"there is no protocol {name!r}{checks.nearest(str(name), PROTOCOLS)}")
    return PROTOCOLS[name]
