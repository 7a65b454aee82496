"""Public names are documented; helpers need no docstring if their name says it."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from tools.documentation.reference_pages import modules


def public_objects() -> Iterator[tuple[str, Any]]:
    """Classes and functions on the pages of public names, and what these classes offer."""
    for name, home in modules().items():
        module = importlib.import_module(home)
        for public in getattr(module, "__all__", vars(module)):
            value = getattr(module, public)
            if public.startswith("_") or not getattr(value, "__module__", "").startswith("ramen"):
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{name}.{public}", value
            if inspect.isclass(value):
                yield from ((f"{name}.{public}.{own}", one) for own, one in offered_by(value))


def offered_by(cls: type) -> Iterator[tuple[str, Any]]:
    for name, _ in inspect.getmembers_static(cls):
        value = inspect.getattr_static(cls, name)
        value = getattr(value, "__func__", value)
        origin = getattr(value, "fget", None) or getattr(value, "func", None) or value
        own = str(getattr(origin, "__module__", "")).startswith("ramen")
        if own and not name.startswith("_") and (inspect.isfunction(origin)):
            yield name, value


def test_public_names_are_documented() -> None:
    found = dict(public_objects())
    assert {"ramen.Method.predict", "ramen.Prediction.labels", "ramen.Client.classify"} <= found.keys()
    assert [name for name, value in found.items() if not inspect.getdoc(value)] == []
