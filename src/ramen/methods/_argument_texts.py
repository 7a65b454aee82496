"""What a docstring says about each argument."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence


def argument_texts(docstring: str | None) -> dict[str, str]:
    """The text of each argument in the section ``Args`` of a docstring, on one line each.

    >>> argument_texts('''Do it.
    ...
    ...     Args:
    ...         speed: How fast; ``inf`` for
    ...             at once.
    ...         *names: Of what.
    ...     ''')
    {'speed': 'How fast; `inf` for at once.', 'names': 'Of what.'}
    """
    lines = inspect.cleandoc(docstring or "").splitlines()
    if "Args:" not in lines:
        return {}
    texts: dict[str, str] = {}
    name, margin = "", None
    for line in lines[lines.index("Args:") + 1 :]:
        indent = len(line) - len(line.lstrip())
        if not line.strip() or not indent:
            break  # the next section
        margin = indent if margin is None else margin
        start = re.match(r"\*{0,2}(\w+)(?: \([^)]*\))?: *", line.strip()) if indent == margin else None
        if start:
            name, line = start[1], line.strip()[start.end() :]
        texts[name] = f"{texts.get(name, '')} {line.strip()}".strip().replace("``", "`")
    return texts


def explanations(parameters: Iterable[str], texts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What is said about each parameter: by the class itself, or else by the nearest of its bases.

    >>> explanations(["lr", "seed"], [{"lr": "Step size."}, {"lr": "Any.", "seed": "Decides."}])
    {'lr': 'Step size.', 'seed': 'Decides.'}
    """
    return {name: next((text[name] for text in texts if name in text), "") for name in parameters}
