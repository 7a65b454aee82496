"""Values as people write them on a command line, and as results hold them.

JSON knows no infinity: in results it is the string "inf".
"""

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ramen.methods._registry import describe
from ramen.utils.checks import nearest

_WORDS = {"inf": math.inf, "-inf": -math.inf, "true": True, "false": False, "none": None}
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def parse_value(text: str) -> Any:
    """A number, a flag, a list, or the text itself.

    >>> [parse_value(text) for text in ("1e-3", "10", "inf", "true", "[1, 2]", "causal")]
    [0.001, 10, inf, True, [1, 2], 'causal']
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parse_pairs(argument: str, pairs: Iterable[str]) -> dict[str, Any]:
    """Values of ``KEY=VALUE`` strings by key.

    >>> parse_pairs("--protocol-set", ["length=5"])
    {'length': 5}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key.strip() and equals):
            raise ValueError(f"{argument} must be KEY=VALUE, got {pair!r}")
        if key.strip() in values:
            raise ValueError(f"{argument}: {key.strip()} is given twice")
        values[key.strip()] = parse_value(value.strip())
    return values


def overrides_by_method(methods: Sequence[str], settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each of the methods is given by settings such as ``topk=10`` or ``ramen.topk=10``.

    A setting without a method is for all that have such a parameter; one method at least must. One that
    names its method goes before.
    """
    overrides: dict[str, dict[str, Any]] = {method: {} for method in methods}
    given = parse_pairs("--set", settings)
    for key, value in sorted(given.items(), key=lambda item: "." in item[0]):
        method, dot, parameter = key.rpartition(".")
        if parameter == "seed":
            raise ValueError("--set: the seed is not a setting of a method; use --seed")
        if dot and method not in overrides:
            describe(method)  # an unknown name is told as such
            raise ValueError(f"--set {key}: method {method!r} is not among those that run")
        chosen = [method] if dot else list(overrides)
        having = [name for name in chosen if parameter in describe(name).defaults]
        if not having:
            known = {known for name in chosen for known in describe(name).defaults} - {"seed"}
            hint = nearest(parameter, known)
            raise ValueError(f"--set: none of {', '.join(chosen)} has a parameter {parameter!r}{hint}")
        for name in having:
            overrides[name][parameter] = value
    return overrides


def plain(value: Any) -> Any:
    """A value as JSON has it, mappings with their keys in order."""
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "item"):  # numpy's numbers
        return plain(value.item())
    raise TypeError(f"a setting must be a number, text, a flag or a list, got {type(value).__name__}")


def from_plain(value: Any) -> Any:
    """What ``plain`` made a value of.

    >>> from_plain(plain({"prior": math.inf}))
    {'prior': inf}
    """
    if isinstance(value, Mapping):
        return {key: from_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return _INFINITIES.get(value, value) if isinstance(value, str) else value
