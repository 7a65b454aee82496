"""``ramen data verify``."""

import json

import numpy as np
import pytest

from tests.fakes.layouts import write_tree


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
