"""Examples in docstrings as blocks of code: pages would run their lines together."""

from inspect import cleandoc
from typing import Any

import griffe


def with_blocks(docstring: str) -> str:
    """A docstring with fences around its examples, from ``>>>`` to the next blank line.

    They keep their indentation, so that an example of a section stays in it.
    """
    lines: list[str] = []
    indent: str | None = None
    for line in cleandoc(docstring).splitlines():
        starts = line.lstrip().startswith(">>> ")
        if starts and indent is None:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        if indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines if indent is None else [*lines, f"{indent}```"])


class DoctestBlocks(griffe.Extension):
    """Changes the docstrings that mkdocstrings shows."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for everything that has a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = with_blocks(obj.docstring.value)
