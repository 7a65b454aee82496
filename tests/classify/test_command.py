"""``ramen classify`` from the outside, with the tiny model."""

import csv
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import ramen
from ramen.classify.output import Output, journal_path
from ramen.cli import app
from ramen.models import names as model_names
from ramen.models.names import load_model
from ramen.models.tiny_clip.model import load_tiny
from tests.helpers.drawing_files import CLASSES, write_drawings

needs_pyarrow = pytest.mark.skipif(
    find_spec("pyarrow") is None, reason="need pyarrow: pip install 'ramen-tta[parquet]'"
)


@pytest.fixture(scope="module")
def classifier():
    return load_tiny(CLASSES)


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    return write_drawings(tmp_path_factory.mktemp("drawings"))


@pytest.fixture(autouse=True)
def one_classifier(classifier, monkeypatch):
    def load(name, classes, *others):
        return classifier if tuple(classes) == CLASSES else load_tiny(classes)

    monkeypatch.setattr(model_names, "load_model", load)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def classify(*arguments, out="labels.csv", stdin=None, classes="cat,house,boat"):
    command = ["classify", "--out", str(out), "--model", "tiny", "--batch", "8", *map(str, arguments)]
    command += ["--classes", classes] if classes else []
    return CliRunner().invoke(app, command, input=stdin, env={"COLUMNS": "400"})


def rows(path="labels.csv"):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def copies(drawings, folder, names):
    """Some drawings under other names."""
    folder.mkdir(parents=True, exist_ok=True)
    for source, name in zip(drawings, names, strict=False):
        (folder / name).write_bytes(source.read_bytes())
    return [folder / name for name in names]


# -- answers --------------------------------------------------------------------------------------------


def test_labels_are_those_of_the_method(here, drawings, classifier):
    """The same as ``predict`` on the same batches; the files are found in sorted order."""
    result = classify(drawings[0].parent)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    method = ramen.create("ramen", classifier)
    expected = []
    for start in range(0, len(drawings), 8):
        out = method.predict(classifier.preprocess(drawings[start : start + 8]))
        probabilities = out.logits.softmax(1).max(1).values
        zero_shot = out.zero_shot_logits.argmax(1)
        expected += list(zip(out.labels.tolist(), zero_shot.tolist(), probabilities.tolist(), strict=True))
    found = rows()
    assert [row["file"] for row in found] == [str(path) for path in drawings]
    assert [(row["label"], row["zero_shot_label"]) for row in found] == [
        (CLASSES[label], CLASSES[before]) for label, before, _ in expected
    ]
    assert [float(row["probability"]) for row in found] == pytest.approx([p for *_, p in expected], abs=1e-5)
    assert [row["state_version"] for row in found] == [str(min(36, 8 * (n // 8 + 1))) for n in range(36)]
    assert "36 files:" in result.stderr


@pytest.mark.parametrize("name", ["labels.jsonl", pytest.param("labels.parquet", marks=needs_pyarrow)])
def test_other_formats_say_the_same(here, drawings, name):
    assert classify(drawings[0].parent).exit_code == 0
    assert classify(drawings[0].parent, out=name).exit_code == 0
    if name.endswith(".jsonl"):
        found = [json.loads(line) for line in Path(name).read_text().splitlines()]
    else:
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(name).to_pylist()
    assert [(row["file"], row["label"], f"{row['entropy']:.6g}") for row in found] == [
        (row["file"], row["label"], row["entropy"]) for row in rows()
    ]
    assert sorted(os.listdir(here)) == sorted(
        ["labels.csv", name, journal_path(Path("labels.csv")).name, journal_path(Path(name)).name]
    )


def head():
    """The first line of the journal."""
    return json.loads(journal_path(Path("labels.csv")).read_text().splitlines()[0])


def test_settings_reach_the_method_and_the_model(here, drawings, monkeypatch):
    monkeypatch.setattr(model_names, "load_model", load_model)
    options = [
        "--method",
        "tent",
        "--set",
        "lr=0.001",
        "--templates",
        "a {}.",
        "--templates",
        "art of the {}.",
    ]
    result = classify(*drawings[:3], *options, "--device", "cpu", "--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    identity = head()["identity"]
    assert (identity["method"], identity["parameters"]) == ("tent", {"lr": 0.001})
    assert identity["templates"] == ["a {}.", "art of the {}."]
    assert identity["dtype"] == "bfloat16"


def test_what_it_says(here, drawings):
    command = ["classify", str(drawings[0]), "--classes", "cat,house", "--out", "labels.csv", "--quiet"]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "warning: without --model the tiny model" in result.stderr
    result = classify(drawings[0], "--quiet", out="other.csv")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_file_of_classes(here, drawings):
    Path("classes.txt").write_text("\ufeffcat\r\n\nhouse \nboat\n", encoding="utf-8")
    result = classify(drawings[0], "--classes-file", "classes.txt", classes=None)
    assert result.exit_code == 0, result.output
    assert head()["identity"]["classes"] == list(CLASSES)


# -- files ----------------------------------------------------------------------------------------------


def test_a_list_on_standard_input(here, drawings):
    listed = "".join(f"{path}\n" for path in (drawings[3], drawings[1], "gone.png"))
    result = classify("-", stdin=listed)
    assert result.exit_code == 3
    found = rows()
    assert [row["file"] for row in found] == [str(drawings[3]), str(drawings[1]), "gone.png"]
    assert "gone.png" in found[2]["error"]


def test_every_name_of_a_file(here, drawings):
    """Names survive into the output, the page and the sorted folders, and a second run knows them."""
    names = ['"quoted", comma.png', "two\nlines.png", "\N{SLICE OF PIZZA}é.png", "a[1]*?.png", "-dash.png"]
    copies(drawings, here / "photos", [*names, "latin1-\udce9.png"])
    options = ["photos", "--page", "changes.html", "--sort-into", "sorted"]
    result = classify(*options)
    assert result.exit_code == 0, result.output
    expected = sorted(os.path.join("photos", name) for name in (*names, "latin1-\\xe9.png"))
    assert sorted(row["file"] for row in rows()) == expected
    assert {path.name for path in (here / "sorted").rglob("*.png")} == {*names, "latin1-\udce9.png"}
    before = Path("labels.csv").read_bytes()
    again = classify(*options)
    assert again.exit_code == 0, again.output
    assert "6 results already; files that are left: 0" in again.stderr
    assert Path("labels.csv").read_bytes() == before


def test_failed_files_have_a_row_and_can_be_tried_again(here, drawings):
    photos = copies(drawings, here / "photos", ["a.png", "b.png", "c.png"])
    photos[1].write_bytes(b"not an image")
    result = classify("photos", "--json")
    assert result.exit_code == 3
    summary = json.loads(result.stdout)
    assert (summary["files"], summary["answers"], summary["errors"]) == (3, 2, 1)
    failed = rows()[1]
    assert failed["file"] == "photos/b.png"
    assert "photos/b.png cannot be read as an image" in failed["error"]
    assert failed["label"] == failed["probability"] == failed["label_2"] == ""

    photos[1].write_bytes(drawings[5].read_bytes())
    again = classify("photos")
    assert again.exit_code == 3  # still what the output says
    retried = classify("photos", "--retry-failed", "--json")
    assert retried.exit_code == 0, retried.output
    assert json.loads(retried.stdout)["new_files"] == 1
    assert [row["file"] for row in rows()] == ["photos/a.png", "photos/c.png", "photos/b.png"]


def test_limits_and_formats(here, drawings):
    copies(drawings, here / "photos", ["a.png"])
    with Image.open(drawings[0]) as image:
        image.convert("RGB").save(here / "photos" / "b.jpg")
    assert classify("photos", "--formats", "JPEG").exit_code == 3
    assert [bool(row["error"]) for row in rows()] == [True, False]
    assert classify("photos", "--max-pixels", "100", out="small.csv").exit_code == 3
    assert all("1024 pixels" in row["error"] or "32 x 32" in row["error"] for row in rows("small.csv"))


def test_no_images_is_no_failure(here):
    (here / "photos").mkdir()
    result = classify("photos")
    assert result.exit_code == 0
    assert "there are no images to classify" in result.stderr
    assert rows() == []


def test_files_that_are_no_images_are_counted(here, drawings):
    """If there is nothing else, that is an error."""
    copies(drawings, here / "photos", ["a.png"])
    for name in ("film.mov", "deep/other.MOV", "notes", ".hidden.mov"):
        path = here / "photos" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    result = classify("photos")
    assert result.exit_code == 0
    assert "2 .mov, 1 without a suffix" in result.stderr
    (here / "photos" / "a.png").unlink()
    result = classify("photos", out="other.csv")
    assert result.exit_code == 2
    assert "2 .mov" in result.stderr
    assert not (here / "other.csv").exists()


# -- what else it writes --------------------------------------------------------------------------------


def test_the_summary_is_all_that_is_on_standard_output(here, drawings):
    result = classify(*drawings[:4], "--json", "--page", "deep/changes.html", "--sort-into", "sorted")
    summary = json.loads(result.stdout)
    labels = [row["label"] for row in rows()]
    assert summary["labels"] == {name: labels.count(name) for name in sorted(set(labels))}
    assert {name: summary[name] for name in ("out", "page", "sorted_into", "state")} == {
        "out": "labels.csv",
        "page": "deep/changes.html",
        "sorted_into": "sorted",
        "state": None,
    }
    assert (summary["model"], summary["method"], summary["new_files"]) == ("tiny", "ramen", 4)
    assert summary["changed"] == sum(row["changed"] == "true" for row in rows())
    assert summary["stopped"] is False
    page = Path("deep/changes.html").read_text()
    assert "Ramen on 4 files" in page
    assert "images in all" in page  # what Ramen chose, and why


def test_sorted_files_are_not_taken_for_new_ones(here, drawings):
    copies(drawings, here / "photos", ["a.png", "b.png"])
    for _ in range(2):
        result = classify("photos", "--sort-into", "photos/sorted")
        assert result.exit_code == 0, result.output
    assert len(rows()) == 2
    assert len(list((here / "photos" / "sorted").rglob("*.png"))) == 2


# -- again ----------------------------------------------------------------------------------------------


def test_the_same_command_adds_what_is_missing(here, drawings):
    assert classify(*drawings[:10]).exit_code == 0
    before = Path("labels.csv").read_bytes()
    result = classify(*drawings[:20], "--page", "changes.html")
    assert result.exit_code == 0
    assert "labels.csv has 10 results already; files that are left: 10" in result.stderr
    assert "only --state DIR keeps it" in result.stderr
    assert Path("labels.csv").read_bytes().startswith(before)
    assert [row["file"] for row in rows()] == [str(path) for path in drawings[:20]]
    assert "Ramen on 20 files" in Path("changes.html").read_text()


def test_ctrl_c_saves_what_is_done(here, drawings, monkeypatch):
    """Asked to stop during the first batch: that batch is finished, and the page is written."""
    append = Output.append

    def interrupted(self, results):
        append(self, results)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "append", interrupted)
        result = classify(*drawings, "--page", "changes.html", "--json")
    assert result.exit_code == 130
    assert "stopping after this batch" in result.stderr
    summary = json.loads(result.stdout)
    assert (summary["files"], summary["stopped"]) == (8, True)
    assert "Ramen on 8 files" in Path("changes.html").read_text()
    assert classify(*drawings).exit_code == 0
    assert [row["file"] for row in rows()] == [str(path) for path in drawings]


def test_a_second_ctrl_c_stops_at_once(here, drawings, monkeypatch):
    def interrupted(self, results):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "append", interrupted)
        assert classify(*drawings).exit_code == 130
    assert rows() == []
    assert classify(*drawings).exit_code == 0


# -- what is wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.png"], "PHOTOS: there is no file or folder 'nothing.png'"),
        (["{}", "--out", "labels.txt"], "--out must end with one of .csv, .jsonl, .parquet, got labels.txt"),
        (["{}", "--classes-file", "x"], "give the classes with --classes or with --classes-file"),
        (["{}", "--classes", "cat,cat"], "classes must differ"),
        (["{}", "--classes", ","], "classes must name at least one class"),
        (["{}", "--classes", "cat,caf\udce9"], "classes must be valid Unicode text, got 'caf\\udce9'"),
        (["{}", "--method", "ramne"], "there is no method 'ramne'"),
        (["{}", "--set", "tpk=3"], "did you mean 'topk'"),
        (["{}", "--templates", "enssemble"], "there is no set 'enssemble'"),
        (["{}", "--copy"], "--copy needs --sort-into"),
        (["{}", "--watch"], "at least one of PHOTOS must be a folder"),
        (["{}", "--formats", "JPEG,XCF"], "formats must be one of"),
        (["{}", "--device", "cuda:99"], "CUDA devices"),
        (["{}", "--model", "ViT-B-99/openai"], "open_clip has no model 'ViT-B-99'"),
    ],
)
def test_wrong_usage(here, drawings, monkeypatch, arguments, message):
    monkeypatch.setattr(model_names, "load_model", load_model)
    given = [argument.format(drawings[0]) for argument in arguments]
    result = CliRunner().invoke(
        app,
        ["classify", "--classes", ",".join(CLASSES), "--model", "tiny", "--out", "labels.csv", *given],
        env={"COLUMNS": "400"},
    )
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert os.listdir(here) == []


def test_a_full_disk_is_a_failure_of_the_machine(here, drawings, monkeypatch):
    append = Output.append

    def full(self, results):
        if self.tally.files >= 16:
            raise OSError(28, "No space left on device")
        append(self, results)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "append", full)
        result = classify(*drawings)
    assert result.exit_code == 1
    assert "error: No space left on device" in result.stderr
    assert len(rows()) == 16
    assert classify(*drawings).exit_code == 0
    assert len(rows()) == len(drawings)


def test_a_state_is_continued_by_another_output(here, drawings):
    """The second half, with what the first half taught, is answered as in one run over both."""
    assert classify(*drawings[:16], *drawings[16:32], out="whole.csv").exit_code == 0
    assert classify(*drawings[:16], "--state", "state", out="first.csv").exit_code == 0
    result = classify(*drawings[16:32], "--state", "state", "--json", out="second.csv")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["state"] == "state"
    assert rows("first.csv") + rows("second.csv") == rows("whole.csv")


def test_a_state_of_something_else_is_refused_and_nothing_is_written(here, drawings):
    assert classify(drawings[0], "--state", "state", out="first.csv").exit_code == 0
    before = sorted(os.listdir(here))
    result = classify(drawings[0], "--state", "state", "--page", "changes.html", classes="cat,house")
    assert result.exit_code == 2
    assert "the store cannot be used, and stays as it is" in result.output
    assert sorted(os.listdir(here)) == before


def test_its_help_is_cheap_and_documents_the_exit_codes():
    code = "import sys; sys.argv = ['ramen', 'classify', '--help']\nfrom ramen.cli import app\ntry: app()\n"
    code += "except SystemExit: print([m for m in ('torch', 'PIL', 'numpy') if m in sys.modules])"
    environment = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[]"
    for words in ("--classes-file", "Exit codes: 0 every file has an answer", "130 Ctrl-C"):
        assert words in " ".join(done.stdout.split())


@pytest.mark.gpu
def test_on_a_gpu(here, drawings, monkeypatch):
    monkeypatch.setattr(model_names, "load_model", load_model)
    assert classify(*drawings, out="cpu.csv").exit_code == 0
    result = classify(*drawings, "--device", "cuda", "--workers", "2")
    assert result.exit_code == 0, result.output
    same = [a["label"] == b["label"] for a, b in zip(rows("cpu.csv"), rows(), strict=True)]
    assert torch.tensor(same).float().mean() > 0.9
