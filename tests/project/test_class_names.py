"""One class name means one thing, wherever it is."""

import ast
from collections import defaultdict
from pathlib import Path

import ramen

PACKAGE = Path(ramen.__file__).parent


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
