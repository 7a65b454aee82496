import json
from dataclasses import replace

import pytest

from ramen.serve.outputs.record import OtherOutputError, OutputRecord, read_record, record_path
from tests.fakes.served_results import IDENTITY


@pytest.fixture
def output(tmp_path):
    path = tmp_path / "labels.csv"
    OutputRecord(path, IDENTITY.to_dict()).start("state", 7)
    return path


def test_what_was_written_is_read(output):
    record = read_record(output, IDENTITY, [output])
    assert record.identity == IDENTITY.to_dict()
    (run,) = record.runs
    assert (run.state, run.before, run.seconds, run.files) == ("state", 7, None, 0)
    assert run.started.endswith("+00:00")
    assert record_path(output).name == ".labels.csv.ramen.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "cd34"}, r"other weights \(ab12 there, cd34 now\)"),
        ({"classes": ("cat", "cow")}, r"other classes \(cat, dog, fire truck there, cat, cow now\)"),
        ({"classes": tuple("abcdef")}, r"a, b, c, d, ... \(6\) now"),
        ({"templates": ("{}",)}, "other prompt templates"),
        ({"method": "tent"}, r"another method \(ramen there, tent now\)"),
        ({"parameters": {}}, r"other parameters of the method \(topk=3 there, none now\)"),
        ({"orient": False}, "--no-orient"),
    ],
)
def test_results_of_something_else_are_refused(output, change, message):
    with pytest.raises(
        OtherOutputError, match=rf"labels.csv holds results of .*{message}.*remove .*labels.csv"
    ):
        read_record(output, replace(IDENTITY, **change), [output])


def test_another_name_of_the_same_model_is_accepted(output):
    assert read_record(output, replace(IDENTITY, model="a copy of tiny"), [output])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no record"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"identity": {}, "runs": [{"x": 1}]}', "is damaged"),
        (json.dumps({"version": 9, "identity": {}, "runs": []}), "has version 9, not 1"),
    ],
)
def test_an_output_without_a_sound_record_is_refused(output, content, message):
    if content is None:
        record_path(output).unlink()
    else:
        record_path(output).write_text(content)
    with pytest.raises(OtherOutputError, match=f"{message}.*choose another --out"):
        read_record(output, IDENTITY, [output])
