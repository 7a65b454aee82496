"""The test run itself: it says why tests were skipped, and finds files that are not part of the project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.shared_files import BESIDE, SharedFolder

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(5))
@pytest.mark.skip(reason="need a CUDA device")
def test_on_a_gpu(number):
    pass

def test_slow():
    pytest.skip("slow; RAMEN_SLOW_TESTS=1 runs them")

def test_wrong():
    assert 1 == 2

def test_right():
    pass
"""


def test_skips_are_counted_by_reason_over_all_workers(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.helpers.skip_summary import pytest_terminal_summary\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text('import pytest\npytest.importorskip("no_such_module")\n')
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rfE", "-p", "xdist", "-n", "2", str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1, done.stdout
    lines = done.stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.strip("= ") == "skipped")
    assert lines[start + 1] == "5 skipped: need a CUDA device"
    assert sorted(lines[start + 2 : start + 4]) == [
        "1 skipped: could not import 'no_such_module': No module named 'no_such_module'",
        "1 skipped: slow; RAMEN_SLOW_TESTS=1 runs them",
    ]
    assert "FAILED test_some.py::test_wrong - assert 1 == 2" in lines
    assert not [line for line in lines if line.startswith("SKIPPED")]


def test_shared_files_are_beside_the_checkout_or_where_a_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SharedFolder("numbers", "no such name", "RAMEN_NUMBERS")
    monkeypatch.delenv("RAMEN_NUMBERS", raising=False)
    assert folder.path == BESIDE / "no such name"
    assert folder.path.parent.parent == ROOT.parent
    assert folder.missing.startswith("need numbers; RAMEN_NUMBERS=FOLDER names its folder (not found: /")
    folder.check()
    monkeypatch.setenv("RAMEN_NUMBERS", str(tmp_path))
    assert folder.path == tmp_path
    assert not folder.missing
    folder.check()


def test_a_variable_that_names_no_folder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who sets it wants those tests to run: a mistake in it must not skip them."""
    monkeypatch.setenv("RAMEN_NUMBERS", "/no/such/folder")
    with pytest.raises(ValueError, match="RAMEN_NUMBERS must name a folder, got '/no/such/folder'"):
        SharedFolder("numbers", "numbers", "RAMEN_NUMBERS").check()
