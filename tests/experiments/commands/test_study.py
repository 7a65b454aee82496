"""``ramen study`` from end to end."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.experiments.run.results import read_result

SMALL = ["--domain", "fog", "--domain", "neon", "--data-set", "pictures=20", "--device", "cpu"]


def run(tmp_path, *words):
    return CliRunner().invoke(app, ["study", *words, *SMALL, "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["similarity"], "Share of same-domain pairs"),
        (["similarity", "--pairs", "500"], "drawn at random"),
        (
            ["no-cache", "--queries", "2", "--after", "20", "--batch", "10", "--set", "topk=2"],
            "with the cache",
        ),
        (
            ["cost", "--method", "tda", "--batches", "1", "--warm-up", "1", "--batch", "10"],
            "a plain forward pass",
        ),
        (["harm", "--images", "10", "--seeds", "1", "--batch", "10"], "Ramen: no guard"),
        (
            ["poison", "--method", "tda", "--images", "20", "--attacker-images", "6", "--share", "0.5"],
            "Points lost to each attack",
        ),
        (
            ["combinations", "--seeds", "1", "--limit", "10", "--batch", "10"],
            "Ramen with a part of another method",
        ),
    ],
)
def test_tables_and_files(tmp_path, words, title):
    shown = run(tmp_path, *words)
    assert shown.exit_code == 0, shown.output
    assert title in shown.stdout
    (path,) = tmp_path.glob(f"studies/{words[0]}-tiny-*.json")
    assert str(path) in shown.stderr.replace("\n", "")
    result = read_result(path)
    assert (result["kind"], result["study"]) == ("study", words[0])
    about = result["provenance"]
    assert about["experiment"]["data_options"] == {"domains": ["fog", "neon"], "pictures": 20}
    assert about["stream"]["pictures"] == (10 if words[0] == "combinations" else 40)
    assert about["versions"]["torch"]
    if words[0] == "poison":
        assert about["parameters"]["tda"]["positive_alpha"] == 1.0  # of the preset
        assert result["data"]["seeds"] == [0]
        assert result["data"]["attacks"] == ["entropy", "target", "flood", "noise"]
    if words[0] == "no-cache":
        assert about["parameters"]["ramen"]["topk"] == 2
        assert about["parameters"]["ramen"]["lr"] == "auto"
        assert 0.02 < result["data"]["parameters"]["lr"] < 0.04  # what was chosen
    if words[0] == "harm":
        assert about["parameters"]["Ramen"] == {}  # not the preset's
        assert result["data"]["rows"]["clean images"]["images"] == 10


def test_harm_of_other_methods_and_data(tmp_path):
    """Arrays leave out their clean images unless these are asked for."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 20, 32, 32, 3), dtype=np.uint8)
    images = {"dark": pixels[0], "clean": pixels[1], "plain": pixels[2]}
    about = {"labels": np.arange(20) % 2, "classes": np.array(["cat", "house"])}
    np.savez(tmp_path / "own.npz", **about, **images)
    words = ["--data", "arrays", "--root", str(tmp_path / "own.npz"), "--model", "tiny", "--images", "6"]
    words += ["--seeds", "2", "--seed", "4", "--device", "cpu", "--json", "--batch", "10"]

    def study(*more):
        shown = CliRunner().invoke(
            app, ["study", "harm", *words, *more, "--out", str(tmp_path / "out")], catch_exceptions=False
        )
        assert shown.exit_code == 0, shown.output
        return json.loads(shown.stdout)

    result = study("--method", "tent", "--set", "lr=0.5", "--preset", "none")
    data = result["data"]
    assert list(data["methods"]) == ["tent"]
    assert data["methods"]["tent"]["parameters"] == {"lr": 0.5}
    assert result["provenance"]["parameters"]["tent"]["lr"] == 0.5
    assert data["seeds"] == [4, 5]
    assert data["rows"]["clean images"]["images"] == 12
    assert data["rows"]["mixed domains"]["images"] == 24
    plain = study("--clean", "plain", "--method", "ensemble", "--preset", "none")
    assert plain["data"]["rows"]["clean images"]["images"] == 12
    np.savez(
        tmp_path / "own.npz", labels=np.arange(20) % 2, classes=np.array(["cat", "house"]), dark=pixels[0]
    )
    without = study("--method", "ensemble", "--preset", "none")
    assert "clean images" not in without["data"]["rows"]
    assert "clean images (no domain is known to be clean)" in without["tables"][0]["note"]


def test_machine_output_and_a_file_for_each_question(tmp_path):
    shown = run(tmp_path, "similarity", "--json")
    result = json.loads(shown.stdout)
    assert result["data"]["images"] == 40
    run(tmp_path, "similarity", "--seed", "1")
    assert len(list(tmp_path.glob("studies/*.json"))) == 2
    run(tmp_path, "similarity")
    assert len(list(tmp_path.glob("studies/*.json"))) == 2


def test_an_attacker_has_other_drawings_and_ramen_its_own_choices(tmp_path, monkeypatch):
    from ramen.experiments.studies import poison

    calls = []
    monkeypatch.setattr(
        poison, "poison_study", lambda *given, **named: calls.append((given, named)) or _no_result()
    )
    shown = run(tmp_path, "poison", "--method", "ramen", "--method", "tent", "--seed", "4", "--set", "topk=2")
    assert shown.exit_code == 0, shown.output
    (((_, streams, rows), named),) = calls
    assert [stream.seed for stream in streams] == [4, 5, 6]
    assert [stream.dataset.identity["picture_seed"] for stream in named["attackers"]] == [1000] * 3
    assert {row.label: dict(row.parameters) for row in rows} == {
        "ramen, paper's values": {"capacity": 3125, "topk": 2, "beta": 5.0, "lr": 0.01},
        "ramen, no guard": {"guard": 0.0, "topk": 2},
        "ramen": {"topk": 2},
        "tent": {"lr": 0.001},
    }


def _no_result():
    return {"kind": "study", "study": "poison", "title": "", "tables": [], "data": {"methods": {}}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["similarities"],
            "NAME must be one of 'similarity', 'no-cache', 'cost', 'harm', 'poison', "
            "'combinations', got 'similarities'",
        ),
        (["cost", "--pairs", "100"], "--pairs belongs to the study similarity, not to cost"),
        (["similarity", "--warm-up", "1"], "--warm-up belongs to the study cost, not to similarity"),
        (
            ["similarity", "--method", "tent"],
            "belongs to the studies cost, harm and poison, not to similarity",
        ),
        (["harm", "--set", "lr=0.1"], "--set needs --method"),
        (["harm", "--protocol", "single"], "the study harm makes its own streams, got 'single'"),
        (["harm", "--clean", "cleen"], "no domain is called 'cleen'"),
        (["poison", "--attack", "fire"], "attacks must be one of 'entropy', 'target', 'flood', 'noise'"),
        (["poison", "--eps", "3"], "eps must be at most 1"),
        (["no-cache", "--after", "39"], "must be at most the stream's 40 images, got 39"),
        (["no-cache", "--set", "topc=3"], "topc"),
        (["combinations", "--images", "3"], "--images belongs to the studies harm and poison, not to comb"),
        (["combinations", "--set", "topk=0"], "topk must be at least 1"),
        (["combinations", "--variant", "no gard"], "variant must be one of 'Ramen', 'no balance', "),
    ],
)
def test_bad_input(tmp_path, words, message):
    shown = run(tmp_path, *words)
    assert shown.exit_code == 2
    assert message in " ".join(shown.output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())
