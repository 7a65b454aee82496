import json
import os
import socket

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from ramen.cli import app
from ramen.data.drawings.tiny import DOMAINS, mixed_stream, object_called
from ramen.experiments import demo
from ramen.experiments.presets import load_preset
from ramen.methods._passes import Support


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The quick form, with the network shut."""
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    console = Console(record=True, width=140, file=open(os.devnull, "w"))  # noqa: SIM115
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the demo went to the network"))
        results = demo.run(quick=True, out=out, console=console)
    return results, out, console.export_text()


def test_ramen_is_above_the_others(quick):
    methods = quick[0]["methods"]
    averages = {name: entry["average"] for name, entry in methods.items()}
    assert averages["ramen"] > max(averages[name] for name in ("ensemble", "entmin", "tent"))
    assert methods["ramen"]["difference"]["points"] > 0
    assert methods["ensemble"]["difference"] == {"points": 0, "margin": 0}


def test_support_is_of_the_own_domain_more_often_than_by_chance(quick):
    results = quick[0]
    assert results["chance_share"] == 1 / len(DOMAINS)
    assert results["same_domain_share"]["ramen"] > 1.8 * results["chance_share"]
    matrix = results["composition"]["ramen"]
    diagonal = sum(matrix[i][i] for i in range(len(DOMAINS)))
    assert diagonal / sum(map(sum, matrix)) == pytest.approx(results["same_domain_share"]["ramen"])


def test_what_is_saved_and_printed(quick):
    results, out, text = quick
    assert json.loads((out / "results.json").read_text()) == results
    with Image.open(out / "figure.png") as image:
        assert image.width > 1500
        pixels = np.asarray(image.convert("RGB").resize((64, 48))).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 300  # not an empty page
    for word in ("zero-shot", "EntMin", "Tent", "Ramen", "stained glass", "Average", "±", "times chance"):
        assert word in text
    for word in ("figure.png", "results.json", "(zero-shot", "images/s"):
        assert word in text
    assert results["images"] == demo.PER_DOMAIN_QUICK * len(DOMAINS)


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


def test_the_stream_is_that_of_the_drawings():
    """Classes that cannot be drawn do not appear; the labels count them."""
    classes = ["giraffe", "cat", "boat"]
    drawn = mixed_stream([object_called(name) for name in classes[1:]], 4, 7)
    stream = demo.demo_stream(classes, 4, 7)
    assert torch.equal(stream.read(slice(0, len(stream))), drawn.pixels)
    assert stream.labels().tolist() == (1 + drawn.labels).tolist()
    assert stream.domain.tolist() == drawn.domains.tolist()
    assert [domain.name for domain in stream.dataset.domains] == list(DOMAINS)


def test_the_parameters_are_those_of_the_preset(quick):
    for name, entry in quick[0]["methods"].items():
        assert entry["parameters"] == load_preset("tiny").row(name, "mixed")
    assert quick[0]["batch"] == load_preset("tiny").batch


def invoke(*arguments):
    return CliRunner().invoke(app, ["demo", *arguments])


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
    result = invoke(*given, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)
    assert results["classes"] == ["giraffe", "sailboat", "kitten"]
    assert results["seed"] == 3
    assert list(results["methods"]) == ["ensemble", "entmin"]
    assert results["methods"]["ensemble"]["average"] > 60
    assert "No images of giraffe" in result.stderr
    assert (tmp_path / "figure.png").exists()
    assert results["classify"]["out"] == str(tmp_path / "labels.csv")
    assert (tmp_path / "changes.html").exists()
    for word in ("ramen classify", "from_open_clip"):
        assert word in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--classes", "giraffe,zebra"], "none of giraffe, zebra can be drawn; these can: apple"),
        (["--classes", "cat,cat"], "cat"),
        (["--classes", ","], "classes"),
        (["--method", "ramne"], "there is no method 'ramne'"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path):
    result = invoke("--quick", "--out", str(tmp_path / "out"), *arguments)
    assert result.exit_code == 2
    # the error box may break lines
    assert message.replace(" ", "") in "".join(c for c in result.output if c not in " │\n")
    assert not (tmp_path / "out" / "results.json").exists()
