"""Methods by name."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ramen.methods._argument_texts import argument_texts, explanations
from ramen.methods._info import MethodInfo
from ramen.methods._own_records import GROUP, own_records
from ramen.utils.checks import nearest

if TYPE_CHECKING:
    from ramen.methods._base import Method
    from ramen.models.classifier import ZeroShotClassifier

_PACKAGE = "ramen.methods"
_METHODS: "dict[str, type[Method]]" = {}  # those that have been imported
_M = TypeVar("_M", bound="type[Method]")


def register(info: MethodInfo) -> Callable[[_M], _M]:
    """Class decorator: enter a method into the registry under ``info.name``."""

    def enter(cls: _M) -> _M:
        if not cls.__module__.startswith(f"{_PACKAGE}."):
            _load_own_methods()  # so that a taken name is reported here, whatever was imported before
        known = _METHODS.get(info.name)
        again = known is not None and (known.__module__, known.__qualname__) == (
            cls.__module__,
            cls.__qualname__,
        )
        if known is not None and not again:
            raise ValueError(f"name {info.name!r} is taken by {known.__module__}.{known.__qualname__}")
        defaults = _defaults(cls)
        texts = [argument_texts(vars(one).get("__doc__")) for one in cls.__mro__]
        cls.info = dataclasses.replace(
            info,
            defaults=defaults,
            explanations=explanations(defaults, texts),
            joins_groups=cls.joins_groups,
        )
        _METHODS[info.name] = cls
        return cls

    return enter


def list_methods() -> list[str]:
    """The names of all registered methods."""
    return sorted(_records())


def describe(name: str) -> MethodInfo:
    """The record of a method; printed, it is a short page."""
    records = _records()
    if name not in records:
        raise ValueError(f"there is no method {name!r}{nearest(str(name), records)}")
    return records[name]


def get_method(name: str) -> "type[Method]":
    """The class of that name."""
    describe(name)  # raises for an unknown name
    _load_own_methods()
    return _METHODS[name]


def create(name: str, classifier: "ZeroShotClassifier", **parameters: Any) -> "Method":
    """A fresh method of that name on ``classifier``.

    Args:
        name: Of the method.
        classifier: What it adapts.
        parameters: See ``describe(name).defaults``; and ``group``, a ``torch.distributed`` process group
            whose processes share one stream (``Method`` says how).
    """
    from ramen.utils.numerics import plain_numerics

    cls = get_method(name)
    if parameters.get(GROUP) is None:
        parameters.pop(GROUP, None)
    elif not cls.joins_groups:
        able = ", ".join(sorted(other for other, one in _METHODS.items() if one.joins_groups))
        raise ValueError(
            f"group: method {name!r} cannot share a stream with other processes; these can: {able}"
        )
    for parameter in parameters:
        if parameter not in cls.info.defaults and parameter != GROUP:
            hint = nearest(parameter, cls.info.defaults)
            raise TypeError(f"method {name!r} has no parameter {parameter!r}{hint}")
    with plain_numerics():
        return cls(classifier, **parameters)


def _records() -> dict[str, MethodInfo]:
    """The records of all methods, without importing those of this package if their source can be read."""
    own = own_records()
    if own is None:
        _load_own_methods()
    return {**(own or {}), **{name: cls.info for name, cls in _METHODS.items()}}


def _defaults(cls: "type[Method]") -> dict[str, Any]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]  # behind self, classifier
    return {p.name: p.default for p in parameters if p.name != GROUP}


def _load_own_methods() -> None:
    """Import every file of this package: a new method is one file more."""
    package = importlib.import_module(_PACKAGE)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{_PACKAGE}.{module.name}")
