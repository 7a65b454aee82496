"""Print the lowest versions that ``pyproject.toml`` allows, as constraints for pip.

``make test-oldest`` installs with them: a lower bound that nobody has tried is a guess.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
EXTRAS = ("serve", "parquet", "remote", "dev")  # what the tests of the core need
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9][0-9.]*)")


def constraints(project: dict[str, object]) -> Iterator[str]:
    """One line ``name==lowest`` for each requirement with a lower bound.

    >>> list(constraints({"dependencies": ["torch>=2.8", "plain"], "optional-dependencies": {}}))
    ['torch==2.8']
    """
    extras = project.get("optional-dependencies")
    dependencies = project["dependencies"]
    assert isinstance(extras, dict)
    assert isinstance(dependencies, list)
    for requirement in [*dependencies, *(one for name in EXTRAS for one in extras.get(name, []))]:
        match = _REQUIREMENT.match(requirement)
        if match is not None and not requirement.startswith("ramen-tta"):
            yield f"{match[1]}=={match[2]}"


if __name__ == "__main__":
    for line in constraints(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]):
        print(line)
