"""``ramen data verify``."""

import json

import numpy as np
import pytest

from ramen.data import load
from tests.fakes.layouts import write_clean_arrays, write_photos, write_tree


def test_the_released_files_are_ok(run, released):
    result = run("verify", "cifar10c", "--root", released, "--domain", "fog")
    assert result.exit_code == 0, result.output
    assert "10 classes, 10,000 images" in result.output
    assert result.output.endswith("\nno problems found\n")


def test_names_what_is_missing_and_where_to_get_it(run, released):
    result = run("verify", "cifar10c", "--root", released)
    assert result.exit_code == 1
    missing = [line for line in result.output.splitlines() if line.startswith("error:")]
    assert len(missing) == 14
    assert missing[0] == (
        f"error: {released}/gaussian_noise.npy: missing "
        "(`ramen data download cifar10c`, or https://zenodo.org/records/2535967)"
    )
    assert result.output.endswith("\nproblems found\n")


def test_json(run, tmp_path):
    write_tree(tmp_path, ["summer", "winter"], ["bear", "wolf"])
    (tmp_path / "winter/bear/a.jpg").write_bytes(b"")
    result = run("verify", "folder", "--root", tmp_path, "--deep", "--json")
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert printed["ok"] is False
    assert printed["domains"] == {"summer": 4, "winter": 4}
    assert printed["classes"] == 2
    assert printed["root"] == str(tmp_path)
    assert [(f["level"], f["where"]) for f in printed["findings"]] == [
        ("error", str(tmp_path / "winter/bear/a.jpg"))
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pcas", "--root", "."], "did you mean 'pacs'"),
        (["pacs", "--root", ".", "--severity", "3"], "pacs has no option 'severity'"),
        (["pacs", "--root", ".", "--domain", "phot"], "did you mean 'photo'"),
    ],
)
def test_wrong_arguments(run, arguments, message):
    result = run("verify", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_arrays_that_do_not_match_their_labels(run, tmp_path):
    np.savez(
        tmp_path / "data.npz", labels=[0, 1], fog=np.zeros((3, 4, 4, 3), np.uint8), classes=["ant", "bee"]
    )
    result = run("verify", "arrays", "--root", tmp_path / "data.npz")
    assert result.exit_code == 1
    assert "array 'fog' has 3 images for 2 labels" in result.output


@pytest.fixture
def made(run, tmp_path):
    """A set made with two of the corruptions, at one severity."""
    source = write_clean_arrays(tmp_path / "clean.npz")
    out = tmp_path / "c"
    part = ["--severity", 4, "--corruption", "contrast", "--corruption", "fog", "--workers", 1]
    assert run("make", "cifar10c", "--from", source, "--out", out, *part).exit_code == 0
    return out


def test_a_part_that_was_made_is_sound(run, made):
    result = run("verify", "cifar10c", "--root", made)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"cifar10c in {made}: 10 classes, 50 images"
    assert [line.split() for line in lines[1:3]] == [["fog", "25"], ["contrast", "25"]]
    assert lines[3] == (
        f"note: {made}: was made with 1 of 5 severities: 4; not there: 1, 2, 3, 5 (run it with --severity 4)"
    )
    assert lines[4].startswith(f"note: {made}: was made with 2 of 15 corruptions: fog, contrast; not there: ")
    assert lines[4].endswith("jpeg_compression (run it with --domain fog --domain contrast)")
    assert lines[5] == "no problems found"
    assert load("cifar10c", made, severity=4, domains=["fog", "contrast"])  # as the notes say


def test_what_was_asked_for_must_be_there(run, made):
    for asked in (["--domain", "snow", "--severity", 4], ["--severity", 5], ["--domain", "snow"]):
        result = run("verify", "cifar10c", "--root", made, *asked)
        assert result.exit_code == 1, asked
        assert "missing" in result.output


def test_a_part_that_is_not_whole_is_unsound(run, made):
    np.save(made / "severity_4" / "fog.npy", np.zeros((24, 32, 32, 3), np.uint8))
    assert run("verify", "cifar10c", "--root", made).exit_code == 1


def test_a_set_whose_making_was_interrupted_is_unsound(run, made):
    (made / ".unfinished").mkdir()
    result = run("verify", "cifar10c", "--root", made)
    assert result.exit_code == 1
    assert "making it was interrupted" in result.output


def test_a_part_of_imagenetc(run, tmp_path):
    write_photos(tmp_path / "val", 2)
    out = tmp_path / "c"
    part = ["--severity", 2, "--corruption", "contrast", "--workers", 1]
    assert run("make", "imagenetc", "--from", tmp_path / "val", "--out", out, *part).exit_code == 0
    result = run("verify", "imagenetc", "--root", out)
    assert result.exit_code == 0, result.output
    assert "was made with 1 of 15 corruptions: contrast;" in result.output
    next((out / "contrast" / "2" / "n01").iterdir()).unlink()
    result = run("verify", "imagenetc", "--root", out)
    assert result.exit_code == 1
    assert "has 3 images, and was made from 4" in result.output
