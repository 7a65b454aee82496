"""Public names of a package that are imported when they are first used, so that importing it stays cheap."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str,
    homes: Mapping[str, str],
    modules: Mapping[str, str] | None = None,
    others: Sequence[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package.

    Its public names are those in ``homes``, with the module that each is defined in; ``modules`` that are
    public themselves; and ``others``, which it defines itself.
    """
    public = modules or {}

    def get(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        if name in public:
            return importlib.import_module(public[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted([*homes, *public, *others])

    return get, names
