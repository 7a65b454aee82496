"""The direction of dependencies, checked by import-linter: it passes, and it fails on an upward import."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = {"PYTHONPATH": str(root / "src"), "PATH": ""}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(
        ROOT / "src" / "ramen", tmp_path / "src" / "ramen", ignore=shutil.ignore_patterns("weights")
    )
    return tmp_path


def test_layers_hold(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "upward"),
    [
        ("utils/checks.py", "ramen.kernels"),
        ("models/names.py", "ramen.memory.codecs"),  # beside it, not below
    ],
)
def test_an_upward_import_is_found(copy: Path, module: str, upward: str) -> None:
    path = copy / "src" / "ramen" / module
    path.write_text(f"{path.read_text()}\nimport {upward}\n")
    done = lint(copy)
    assert done.returncode == 1
    assert f"ramen.{module.removesuffix('.py').replace('/', '.')} -> {upward}" in done.stdout


def test_a_new_package_needs_a_layer(copy: Path) -> None:
    (copy / "src" / "ramen" / "extra.py").write_text('"""Without a layer."""\n')
    assert lint(copy).returncode == 1
