"""Values as they are written on the command line and stored in results.

JSON has no infinity: results store it as the string "inf".
"""

import ast
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramen.methods._registry import describe, list_methods
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
    """The parameters that settings such as ``topk=10`` or ``ramen.topk=10`` set, for each method.

    A setting without a method's name applies to all methods that have the parameter; at least one must.
    A setting with a method's name overrides it.
    """
    overrides: dict[str, dict[str, Any]] = {method: {} for method in methods}
    given = parse_pairs("--set", settings)
    for key, value in sorted(given.items(), key=lambda item: "." in item[0]):
        method, dot, parameter = key.rpartition(".")
        if parameter == "seed":
            raise ValueError("--set: the seed is not a parameter of a method; use --seed")
        if dot and method not in overrides:
            describe(method)  # raises for an unknown name
            raise ValueError(f"--set {key}: method {method!r} is not among the methods to run")
        chosen = [method] if dot else list(overrides)
        affected = [name for name in chosen if parameter in describe(name).defaults]
        if not affected:
            known = {known for name in chosen for known in describe(name).defaults} - {"seed"}
            hint = nearest(parameter, known)
            raise ValueError(f"--set: none of {', '.join(chosen)} has a parameter {parameter!r}{hint}")
        for name in affected:
            overrides[name][parameter] = value
    return overrides


def plain(value: Any) -> Any:
    """A value as JSON can store it, mappings with sorted keys."""
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "item"):  # numpy numbers
        return plain(value.item())
    raise TypeError(f"a setting must be a number, a string, a boolean or a list, got {type(value).__name__}")


def from_plain(value: Any) -> Any:
    """The inverse of ``plain``.

    >>> from_plain(plain({"prior": math.inf}))
    {'prior': inf}
    """
    if isinstance(value, Mapping):
        return {key: from_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return _INFINITIES.get(value, value) if isinstance(value, str) else value


def read_toml(what: str, path: Path) -> dict[str, Any]:
    """The content of a user's file; ValueError, which says what it is, if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{what}: there is no file {path}") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not TOML
        raise ValueError(f"{what}: {path} cannot be read: {error}") from None


def require_parameters(where: str, method: str, given: Iterable[str]) -> None:
    """Refuse a method and parameters that there are not: a misspelt name would have no effect."""
    try:
        known = set(describe(method).defaults) - {"seed"}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    for parameter in given:
        if parameter not in known:
            raise ValueError(f"{where}: {method} has no parameter {parameter!r}{nearest(parameter, known)}")


def with_defaults(method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a method in plain values; only the given ones if the method is not registered."""
    known = describe(method).defaults if method in list_methods() else {}
    return {**{name: plain(value) for name, value in known.items() if name != "seed"}, **parameters}
