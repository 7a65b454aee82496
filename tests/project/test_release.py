"""What is released: the wheel runs in a fresh environment, and has what it needs and nothing else."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import ramen
from tests.helpers.slow_tests import RUN_SLOW_TESTS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "ramen"
pytestmark = pytest.mark.xdist_group("release")


def run(*command: str | Path, cwd: Path, timeout: float = 600) -> str:
    """Standard output of a command that sees nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(SOURCE, copy / "src" / "ramen", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "docs", "benchmarks", "tools"):  # which must stay out
        (copy / name).mkdir()
        (copy / name / "test_something.py").write_text("raise SystemExit\n")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def test_names_and_size(wheel: Path, dist: Path) -> None:
    version = ramen.__version__
    assert wheel.name == f"ramen_tta-{version}-py3-none-any.whl"
    assert [path.name for path in dist.glob("*.tar.gz")] == [f"ramen_tta-{version}.tar.gz"]
    assert wheel.stat().st_size < 15e6


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    facts = {name for name in names if name.startswith(f"ramen_tta-{ramen.__version__}.dist-info/")}
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert names - facts == {f"ramen/{path.relative_to(SOURCE).as_posix()}" for path in files}
    assert {name.rsplit("/")[-1] for name in facts} >= {"METADATA", "RECORD", "LICENSE", "entry_points.txt"}


def test_the_sdist_has_what_building_and_reading_need(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]
    assert {name.split("/")[0] for name in inside} == {
        *("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md"),
        *("pyproject.toml", "setup.cfg", "src"),
    }
    assert not [name for name in inside if "__pycache__" in name]


def test_the_metadata_is_true(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(name).decode()
    head = text.split("\n\n")[0].splitlines()
    assert f"Version: {ramen.__version__}" in head
    assert "Requires-Python: >=3.11" in head
    extras = {line.removeprefix("Provides-Extra: ") for line in head if line.startswith("Provides-Extra: ")}
    assert extras >= {"serve", "client", "ray", "parquet", "transformers", "docs", "dev"}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; dependencies are this one's, or its own in slow tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=RUN_SLOW_TESTS)
    python = folder / "bin" / "python"
    if RUN_SLOW_TESTS:
        run(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder, timeout=1800)
        return folder
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    # Only now, so that pip does not take this environment's own Ramen for the one to replace. A path in such
    # a file is searched last, and files like it in that path (an editable install is one) are not read.
    own = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    )
    (own / "dependencies.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    )
    return folder


def test_it_is_the_wheel_that_is_imported(installed: Path) -> None:
    code = "import importlib.metadata as m, ramen; print(ramen.__file__, m.version('ramen-tta'))"
    place, version = run(installed / "bin" / "python", "-c", code, cwd=installed).split()
    assert Path(place).is_relative_to(installed)
    assert version == ramen.__version__


def test_the_demo_runs_there(installed: Path, tmp_path: Path) -> None:
    run(installed / "bin" / "ramen", "demo", "--quick", "--method", "ramen", "--out", "out", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "figure.png",
        "labels.csv",
        "changes.html",
    }
    results = ramen.results(tmp_path / "out")
    assert set(results["experiment.method"]) == {"ensemble", "ramen"}


def test_light_commands_run_there(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "bin" / "ramen", "--version", cwd=tmp_path) == f"ramen {ramen.__version__}\n"
    listed = run(installed / "bin" / "ramen", "methods", cwd=tmp_path)
    assert "ramen" in listed
    assert "tent" in listed
