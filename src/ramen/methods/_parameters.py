"""The parameters that a method runs with, and why those that were not given have their values."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

AUTO = "auto"  # given for a parameter that the method chooses itself
_Value = TypeVar("_Value")


class Parameters(Mapping[str, Any]):
    """The parameters of a method by name; printed, a line for each.

    Attributes:
        why: For each parameter that the method chose itself, the reason in words.
    """

    def __init__(self, values: Mapping[str, Any], why: Mapping[str, str]) -> None:
        self._values, self.why = dict(values), dict(why)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Parameters({self._values!r})"

    def __str__(self) -> str:
        def line(name: str, value: Any) -> str:
            reason = f"  (chosen: {self.why[name]})" if name in self.why else ""
            return f"{name}={value!r}{reason}"

        return "\n".join(line(name, value) for name, value in self.items())


def published(by_classes: Mapping[int, _Value], classes: int) -> tuple[_Value, str]:
    """Of values that were published for numbers of classes, that for the nearest one, and why.

    >>> published({10: 0.9, 1000: 0.1}, classes=37)
    (0.9, 'the published one for about 10 classes')
    """
    nearest = min(by_classes, key=lambda known: abs(math.log(classes / known)))
    return by_classes[nearest], f"the published one for about {nearest:,} classes"
