"""``ramen data make``."""

import json

import pytest

from tests.fakes.layouts import write_clean_arrays, write_photos


@pytest.fixture
def source(tmp_path):
    return write_clean_arrays(tmp_path / "clean.npz")


def test_make_cifar10c(run, source, tmp_path):
    out = tmp_path / "c"
    arguments = ["make", "cifar10c", "--from", str(source), "--out", str(out), "--workers", "1"]
    chosen = ["--severity", "5", "--severity", "4", "--corruption", "contrast", "--corruption", "frost"]
    result = run(*arguments, *chosen, "--seed", "3")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert "frost: " in result.stderr
    assert json.loads((out / "made.json").read_text())["seed"] == 3
    for severity in (4, 5):
        names = sorted(p.name for p in (out / f"severity_{severity}").iterdir())
        assert names == ["contrast.npy", "frost.npy", "labels.npy"]


def test_make_imagenetc(run, tmp_path):
    write_photos(tmp_path / "val", 1)
    out = tmp_path / "c"
    arguments = ["make", "imagenetc", "--from", str(tmp_path / "val"), "--out", str(out)]
    result = run(*arguments, "--severity", "2", "--corruption", "contrast", "--workers", "1")
    assert result.exit_code == 0, result.output
    assert (out / "contrast" / "2" / "n02" / "val_0.JPEG").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar10", "--from", "SOURCE"], "NAME must be one of"),
        (["cifar10c", "--from", "nowhere.npz"], "there is nothing at"),
        (["cifar10c", "--from", "SOURCE", "--corruption", "fogg"], "did you mean 'fog'"),
        (["cifar10c", "--from", "SOURCE", "--severity", "6"], "severity"),
    ],
)
def test_wrong_arguments(run, source, tmp_path, arguments, message):
    arguments = [str(source) if a == "SOURCE" else a for a in arguments]
    result = run("make", *arguments, "--out", tmp_path / "c")
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
