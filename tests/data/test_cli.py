"""``ramen data``: list, download, make and verify."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.data import catalogue, load
from tests.fakes.layouts import write_cifar_c, write_clean_arrays, write_photos, write_tree


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def source(tmp_path):
    return write_clean_arrays(tmp_path / "clean.npz")


@pytest.fixture
def made(source, tmp_path):
    """A set made with two of the corruptions, at one severity."""
    out = tmp_path / "c"
    part = ["--severity", 4, "--corruption", "contrast", "--corruption", "fog", "--workers", 1]
    assert run("make", "cifar10c", "--from", source, "--out", out, *part).exit_code == 0
    return out


def test_list():
    shown = run("list")
    assert shown.exit_code == 0
    assert [
        line.split()[0] for line in shown.output.splitlines() if line[0] != " "
    ] == catalogue.list_datasets()
    records = {record["name"]: record for record in json.loads(run("list", "--json").stdout)}
    assert list(records) == catalogue.list_datasets()
    assert records["domainnet"]["pictures"] == 586_575
    assert records["imagenetc5k"]["options"] == ["severity", "domains", "class_names", "image_list"]
    assert [name for name in records if records[name]["downloadable"]] == [
        "cifar10c",
        "cifar100c",
        "imagenetc",
    ]


def test_download(tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    damaged = run("download", "cifar10c", "--root", tmp_path)
    assert damaged.exit_code == 1
    assert "already exists" in damaged.stderr
    write_cifar_c(tmp_path / "CIFAR-10-C")
    result = run("download", "cifar10c", "--root", tmp_path)
    assert (result.exit_code, "CIFAR-10-C" in result.stdout) == (0, True)


def test_make_cifar10c(source, tmp_path):
    out = tmp_path / "c"
    chosen = ["--severity", "5", "--severity", "4", "--corruption", "contrast", "--corruption", "frost"]
    result = run("make", "cifar10c", "--from", source, "--out", out, "--workers", 1, *chosen, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert "frost: " in result.stderr
    assert json.loads((out / "made.json").read_text())["seed"] == 3
    for severity in (4, 5):
        names = sorted(p.name for p in (out / f"severity_{severity}").iterdir())
        assert names == ["contrast.npy", "frost.npy", "labels.npy"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["make", "cifar10", "--from", "SOURCE", "--out", "OUT"], "NAME"),
        (["make", "cifar10c", "--from", "nowhere.npz", "--out", "OUT"], "nowhere.npz"),
        (["make", "cifar10c", "--from", "SOURCE", "--out", "OUT", "--corruption", "fogg"], "fogg"),
        (["make", "cifar10c", "--from", "SOURCE", "--out", "OUT", "--severity", "6"], "severity"),
        (["download", "pacs", "--root", "OUT"], "pacs"),
        (["verify", "pcas", "--root", "."], "pacs"),
        (["verify", "pacs", "--root", ".", "--severity", "3"], "severity"),
        (["verify", "pacs", "--root", ".", "--domain", "phot"], "photo"),
    ],
)
def test_wrong_arguments(source, tmp_path, arguments, named):
    given = {"SOURCE": source, "OUT": tmp_path / "c"}
    result = run(*(given.get(argument, argument) for argument in arguments))
    assert result.exit_code == 2
    assert named in " ".join(result.output.replace("│", " ").split())


def test_released_files(released):
    assert run("verify", "cifar10c", "--root", released, "--domain", "fog").exit_code == 0
    result = run("verify", "cifar10c", "--root", released)
    assert result.exit_code == 1
    missing = [line for line in result.output.splitlines() if line.startswith("error:")]
    assert len(missing) == 14
    assert f"{released}/gaussian_noise.npy" in missing[0]
    assert "https://zenodo.org/records/2535967" in missing[0]  # where to get it


def test_verify_as_json(tmp_path):
    write_tree(tmp_path, ["summer", "winter"], ["bear", "wolf"])
    (tmp_path / "winter/bear/a.jpg").write_bytes(b"")
    result = run("verify", "folder", "--root", tmp_path, "--deep", "--json")
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert (printed["ok"], printed["classes"], printed["root"]) == (False, 2, str(tmp_path))
    assert printed["domains"] == {"summer": 4, "winter": 4}
    damaged = str(tmp_path / "winter/bear/a.jpg")
    assert [(one["level"], one["where"]) for one in printed["findings"]] == [("error", damaged)]


def test_a_part_that_was_made_is_sound(made):
    result = run("verify", "cifar10c", "--root", made)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split() for line in lines[1:3]] == [["fog", "25"], ["contrast", "25"]]
    assert [line.split(":")[0] for line in lines[3:5]] == ["note", "note"]
    assert "--severity 4" in lines[3]
    assert "--domain fog --domain contrast" in lines[4]
    assert load("cifar10c", made, severity=4, domains=["fog", "contrast"])  # as the notes say


@pytest.mark.parametrize("asked", ["--domain snow --severity 4", "--severity 5", "--domain snow"])
def test_what_was_asked_for_must_be_there(made, asked):
    result = run("verify", "cifar10c", "--root", made, *asked.split())
    assert result.exit_code == 1
    assert "missing" in result.output


def test_a_part_that_is_not_whole_is_unsound(made):
    (made / ".unfinished").mkdir()
    assert run("verify", "cifar10c", "--root", made).exit_code == 1
    (made / ".unfinished").rmdir()
    np.save(made / "severity_4" / "fog.npy", np.zeros((24, 32, 32, 3), np.uint8))
    assert run("verify", "cifar10c", "--root", made).exit_code == 1


def test_a_part_of_imagenetc(tmp_path):
    write_photos(tmp_path / "val", 2)
    out = tmp_path / "c"
    part = ["--severity", 2, "--corruption", "contrast", "--workers", 1]
    assert run("make", "imagenetc", "--from", tmp_path / "val", "--out", out, *part).exit_code == 0
    assert (out / "contrast" / "2" / "n02" / "val_0.JPEG").exists()
    assert run("verify", "imagenetc", "--root", out).exit_code == 0
    next((out / "contrast" / "2" / "n01").iterdir()).unlink()
    assert run("verify", "imagenetc", "--root", out).exit_code == 1
