"""The method of CONTRIBUTING.md, and a model, as files in somebody's folder, in every command."""

import csv
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ramen.experiments.results import results
from tests.helpers.drawing_files import write_drawings
from tests.helpers.slow_tests import RUN_SLOW_TESTS

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
import ramen

def drawn(classes, device="cpu", dtype="float32"):
    folder = ramen.__path__[0] + "/models/tiny_clip/weights"
    names = classes or ["cat", "house", "boat"]
    return ramen.ZeroShotClassifier.from_open_clip(
        f"local-dir:{folder}", None, names, device=device, dtype=dtype
    )
"""
SHORT = ("--import", "mine.py", "--method", "mine", "--data-set", "pictures=4")
MODEL_OPTION = ("--model", "models.py:drawn")


def contributed() -> str:
    return "\n\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL))


def python(folder: Path, *arguments: str) -> str:
    path = os.pathsep.join(str(ROOT / name) if name else str(ROOT) for name in ("src", ""))
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ramen(folder: Path, *commands: list[str]) -> str:
    """What they print, one after the other in one process."""
    program = (
        "import json, sys\n"
        "from ramen.cli import app\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    app(command, standalone_mode=False)\n"
    )
    return python(folder, "-c", program, json.dumps(commands))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both files, and a comparison in worker processes, which load them too."""
    folder = tmp_path_factory.mktemp("somebody")
    (folder / "mine.py").write_text(contributed())
    (folder / "models.py").write_text(MODEL)
    both = ["--method", "ensemble", *MODEL_OPTION, "--seeds", "2", "--jobs", "2"]
    ramen(folder, ["compare", "--run", *SHORT, *both], ["report", "results", "--out", "page.html"])
    return folder


def test_a_comparison_in_worker_processes(folder: Path) -> None:
    assert "mine" in (folder / "page.html").read_text()
    runs = results(folder / "results")
    own = runs[runs["title"] == "mine"]
    assert sorted(own["experiment.seed"]) == [0, 1]
    (source,) = set(own["experiment.source"])
    assert re.fullmatch("mine.py sha256:[0-9a-f]{12}", source)
    assert set(own["provenance.method.origin.file"]) == {"mine.py"}
    assert runs[runs["title"] != "mine"]["experiment.source"].isna().all()
    (recorded,) = set(runs["experiment.model"])
    assert re.fullmatch("models.py:drawn sha256:[0-9a-f]{12}", recorded)


def test_the_same_file_elsewhere_is_the_same_experiment_and_an_edited_one_is_not(
    folder: Path, tmp_path: Path
) -> None:
    same, edited = tmp_path / "same", tmp_path / "edited"
    for place, text in ((same, contributed()), (edited, contributed().replace("My method", "My own"))):
        place.mkdir()
        (place / "mine.py").write_text(text)
    program = (
        "import os, sys\n"
        "from ramen.experiments.experiment import plan\n"
        "for folder in sys.argv[1:]:\n"
        "    if not os.fork():\n"  # as a name is registered once in a process
        "        os.chdir(folder)\n"
        "        print(plan(['mine'], imports=['mine.py'])[0].key(), flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    first, again, other = python(folder, "-c", program, *map(str, (folder, same, edited))).split()
    assert first == again != other


def test_the_other_commands(folder: Path, tmp_path: Path) -> None:
    """Those with methods, and those with models; a run of the same files elsewhere is the same run."""
    for name in ("mine.py", "models.py"):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "spaces.toml").write_text("budget = 2\n[mine]\nlr = [1e-3, 1e-2]\n")
    photos = list(map(str, write_drawings(tmp_path / "photos", per_domain=1)))
    commands = [
        ["run", *SHORT, *MODEL_OPTION, "--out", "runs"],
        ["sweep", *SHORT, "--vary", "lr=1e-3,1e-2"],
        ["sweep", *MODEL_OPTION, *SHORT[-2:], "--method", "tent", "--vary", "lr=1e-3,1e-2"],
        ["tune", *SHORT, "--spaces", "spaces.toml", "--seed", "1000"],
        ["classify", *photos, "--classes", "cat,house,boat", "--out", "labels.csv", *SHORT[:4]],
        ["classify", *photos, "--out", "own.csv", *MODEL_OPTION],
        ["classify", *photos, "--out", "asked.csv", "--classes", "dog,cat", *MODEL_OPTION],
        ["methods", *SHORT[:2]],
        ["describe", "mine", *SHORT[:2]],
        ["doctor", *MODEL_OPTION],
    ]
    if find_spec("onnxruntime") is not None:
        commands.append(["export", "--out", "own.onnx", *MODEL_OPTION])
    said = ramen(tmp_path, *commands)
    assert (tmp_path / "labels.csv").exists()
    assert "My method  [mine.py sha256:" in said
    assert "  comes from: mine.py sha256:" in said
    assert "norm layers" in said
    (file,) = (path.name for path in (tmp_path / "runs").rglob("*.json"))
    assert file in {path.name for path in (folder / "results").rglob("*.json")}
    assert {row["label"] for row in rows(tmp_path / "own.csv")} <= {"cat", "house", "boat"}
    assert {row["label"] for row in rows(tmp_path / "asked.csv")} <= {"cat", "dog"}


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="slow; RAMEN_SLOW_TESTS=1 runs them")
@pytest.mark.skipif(find_spec("ray") is None, reason="need Ray: pip install 'ramen-tta[ray]'")
def test_on_ray(folder: Path) -> None:
    ramen(folder, ["compare", "--run", *SHORT, *MODEL_OPTION, "--store", "on-ray", "--ray", "local"])
    runs = results(folder / "on-ray")
    assert list(runs["title"]) == ["mine"]
    assert runs["experiment.model"][0].startswith("models.py:drawn sha256:")
