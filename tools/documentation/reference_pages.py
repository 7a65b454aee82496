"""The pages of public names, for mkdocstrings to fill with signatures and docstrings."""

import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType

import ramen
from tools.documentation.doctest_blocks import with_blocks

# Public packages; what they export is read from their ``__all__``.
_TOP = "ramen"


def modules() -> dict[str, str]:
    """The real module behind each public one: ``ramen.scoring`` is defined elsewhere."""
    found = {_TOP: _TOP}
    for name in ramen.__all__:
        value = getattr(ramen, name)
        if isinstance(value, ModuleType):
            found[f"{_TOP}.{name}"] = value.__name__
    return found


def paths() -> dict[str, str]:
    """The pages by public module."""
    return {name: f"reference/{name}.md" for name in modules()}


def pages() -> dict[str, str]:
    """The pages by their places on the site."""
    return {path: page(name) for name, path in paths().items()}


def page(name: str) -> str:
    """The page of a public module: its description, then every public name where it is defined."""
    home = modules()[name]
    module = importlib.import_module(home)
    parts = [f"# {name}", with_blocks((module.__doc__ or "").replace("``", "`"))]
    for public in _public(module):
        value = getattr(module, public)
        if isinstance(value, ModuleType):
            parts.append(f"## {public}\n\n`{name}.{public}` has [a page of its own]({name}.{public}.md).")
            continue
        if name != _TOP and getattr(ramen, public, None) is value and public in ramen.__all__:
            parts.append(f"## {public}\n\nAs [`ramen.{public}`]({_TOP}.md).")
            continue
        where = f"{getattr(value, '__module__', None) or home}.{public}"
        if inspect.isclass(value) or inspect.isfunction(value):
            parts.append(f"::: {where}")
        elif isinstance(value, Mapping):
            parts.append(f"## `{public}`\n\nBy name: {', '.join(f'`{key}`' for key in value)}.")
        else:
            parts.append(f"## `{public}`\n\n```python\n{public} = {_shortened(value)}\n```")
    return "\n\n".join(parts) + "\n"


def _public(module: ModuleType) -> list[str]:
    """``__all__``, or what a module without one defines itself."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", module.__name__) == module.__name__
        and not isinstance(value, ModuleType)
    ]
    return sorted(own)


def _shortened(value: object, length: int = 600) -> str:
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]} ..."
