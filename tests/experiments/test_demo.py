import json
import os
import socket

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import ramen
from ramen.data.drawings.tiny import DOMAINS
from ramen.experiments import demo
from ramen.methods._passes import Support
from tests.helpers.ramen_command import ramen as ramen_command


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The quick form, with the network shut."""
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    console = Console(record=True, width=140, file=open(os.devnull, "w"))  # noqa: SIM115
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the demo went to the network"))
        records = demo.run(quick=True, out=out, console=console)
    return records, out, console.export_text()


def test_ramen_is_above_the_others(quick):
    scores = {one["experiment"]["method"]: one["scores"] for one in quick[0]}
    averages = {name: one["average"] for name, one in scores.items()}
    assert averages["ramen"] > max(averages[name] for name in ("ensemble", "entmin", "tent"))
    assert scores["ramen"]["difference"]["points"] > 0
    assert scores["ensemble"]["difference"] == {"points": 0, "margin": 0}


def test_support_is_of_the_own_domain_more_often_than_by_chance(quick):
    composition = quick[0][-1]["composition"]
    assert composition["domains"] == list(DOMAINS)
    assert composition["same_domain"] > 1.8 * 100 / len(DOMAINS)


def test_what_is_saved_and_printed(quick):
    records, out, text = quick
    found = ramen.results(out)
    assert sorted(found["scores.average"]) == sorted(one["scores"]["average"] for one in records)
    assert set(found["cost.images"]) == {demo.PER_DOMAIN_QUICK * len(DOMAINS)}
    with Image.open(out / "figure.png") as image:
        assert image.width > 1500
        pixels = np.asarray(image.convert("RGB").resize((64, 48))).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 300  # not an empty page
    for word in ("zero-shot", "EntMin", "Tent", "Ramen", "stained glass", "Average", "±", "times chance"):
        assert word in text
    for word in ("figure.png", "(zero-shot", "images/s"):
        assert word in text


def test_examples_are_the_nearest_entries_without_the_image_itself():
    """Two images, the 10th and 11th of a stream, of domains 3 and 5; the second has too few entries."""
    support = Support(
        numbers=torch.tensor([[10, 2, 7, 4, 1, 8], [11, 2, 7, 4, 0, 0]]),
        tags=torch.zeros(2, 6, dtype=torch.int64),
        queues=torch.zeros(2, 6, dtype=torch.int64),
        distances=torch.tensor([[0.0, 0.9, 0.1, 0.5, 0.3, 0.2], [0.0, 0.1, 0.2, 0.3, 0.0, 0.0]]),
        weights=torch.ones(2, 6),
        valid=torch.tensor([[True] * 6, [True] * 4 + [False] * 2]),
    )
    assert demo.nearest_entries(support, torch.tensor([3, 5]), first=10) == {3: [10, 7, 8, 1, 4]}


def test_the_runs_are_ordinary_ones(quick, tmp_path):
    """`ramen run` with the same options makes the same answers."""
    records, _, _ = quick
    (own,) = (one for one in records if one["experiment"]["method"] == "entmin")
    given = [f"--data-set={key}={value}" for key, value in own["experiment"]["data_options"].items()]
    said = ramen_command("run", "--data=tiny", "--method=entmin", *given, "--out", tmp_path, "--json")
    (again,) = json.loads(said.stdout)
    assert again["experiment"] == own["experiment"]
    assert again["scores"] == own["scores"]
    assert own["preset"] == "tiny"


def test_own_classes_and_one_method(tmp_path):
    given = [
        "--quick",
        "--classes",
        "giraffe, sailboat, kitten",
        "--method",
        "entmin",
        "--seed",
        "3",
        "--json",
    ]
    result = ramen_command("demo", *given, "--out", tmp_path)
    results = json.loads(result.stdout)
    runs = [one["experiment"] for one in results["runs"]]
    assert [one["method"] for one in runs] == ["ensemble", "entmin"]
    assert {one["seed"] for one in runs} == {3}
    assert runs[0]["data_options"]["classes"] == ["giraffe", "sailboat", "kitten"]
    assert results["runs"][0]["scores"]["average"] > 60
    assert "No images of giraffe" in result.stderr
    assert (tmp_path / "figure.png").exists()
    assert results["classify"]["out"] == str(tmp_path / "labels.csv")
    assert (tmp_path / "changes.html").exists()
    for word in ("ramen classify", "from_open_clip"):
        assert word in result.stderr
