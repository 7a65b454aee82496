"""``--dtype``: what exists keeps its own, and only what is new gets the fastest."""

import json

import pytest
from typer.testing import CliRunner

from ramen.classify.output import journal_path
from ramen.cli import app
from ramen.state import dtypes_below
from tests.helpers.drawing_files import write_drawings


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    return write_drawings(tmp_path_factory.mktemp("drawings"))[0].parent


def classify(folder, drawings, out, *options):
    command = ["classify", str(drawings), "--classes", "cat,house,boat", "--model", "tiny"]
    command += ["--out", str(folder / out), "--state", str(folder / "state"), *options]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output


def dtype_of(out):
    return json.loads(journal_path(out).read_text().splitlines()[0])["identity"]["dtype"]


def test_a_state_and_an_output_keep_their_dtype(drawings, tmp_path):
    assert list(dtypes_below(tmp_path)) == list(dtypes_below(None)) == []
    classify(tmp_path, drawings, "first.csv", "--dtype", "bfloat16")
    assert list(dtypes_below(tmp_path / "state")) == ["bfloat16"]
    classify(tmp_path, drawings, "second.csv")  # refused if it were another one
    classify(tmp_path, drawings, "first.csv")
    assert dtype_of(tmp_path / "first.csv") == dtype_of(tmp_path / "second.csv") == "bfloat16"


def test_a_record_holds_no_auto(drawings, tmp_path):
    classify(tmp_path, drawings, "labels.csv", "--dtype", "auto")
    assert dtype_of(tmp_path / "labels.csv") == "float32"  # the tiny model is too small for bfloat16
