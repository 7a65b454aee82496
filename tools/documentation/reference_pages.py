"""The pages of public names, for mkdocstrings to fill with signatures and docstrings."""

import importlib
import inspect
from types import ModuleType

import ramen

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
    parts = [f"# {name}", _plain(module.__doc__ or "")]
    for public in _public(module):
        value = getattr(module, public)
        if isinstance(value, ModuleType):
            parts.append(f"## {public}\n\n`{name}.{public}` has [a page of its own]({name}.{public}.md).")
            continue
        where = f"{getattr(value, '__module__', None) or home}.{public}"
        if inspect.isclass(value) or inspect.isfunction(value):
            parts.append(f"::: {where}")
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


def _plain(docstring: str) -> str:
    """A module's docstring as Markdown: examples as code."""
    lines, code = [], False
    for line in inspect.cleandoc(docstring).replace("``", "`").splitlines():
        starts = line.startswith(">>> ")
        if starts and not code:
            lines.append("```pycon")
        if code and not line.strip():
            lines.append("```")
        code = (code or starts) and bool(line.strip())
        lines.append(line)
    return "\n".join([*lines, "```"] if code else lines)
