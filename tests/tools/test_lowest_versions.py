"""The constraints of ``make test-oldest`` are the lower bounds of ``pyproject.toml``."""

import subprocess
import sys
import tomllib
from pathlib import Path

from tools.lowest_versions import constraints

ROOT = Path(__file__).resolve().parents[2]


def test_every_runtime_requirement_has_its_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "lowest_versions.py")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert lines[: len(project["dependencies"])] == [
        one.replace(">=", "==") for one in project["dependencies"]
    ]
    assert lines == list(constraints(project))


def test_marks_and_extras_of_requirements() -> None:
    project = {
        "dependencies": ["a>=1.2,<2", "b", "c-d[x,y] >= 3"],
        "optional-dependencies": {"serve": ["ramen-tta[client]>=1"], "dev": ["e>=5.0.1"], "docs": ["f>=6"]},
    }
    assert list(constraints(project)) == ["a==1.2", "c-d==3", "e==5.0.1"]
