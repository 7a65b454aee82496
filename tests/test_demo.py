import json
import os
import socket

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from ramen import demo
from ramen.cli import app
from ramen.tiny.stream import DOMAINS


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
    for word in ("zero-shot", "EntMin", "Tent", "Ramen", "stained glass", "average", "±", "times chance"):
        assert word in text
    for word in ("figure.png", "results.json", "from_open_clip", "accuracy so far", "images/s"):
        assert word in text
    assert results["images"] == demo.PER_DOMAIN_QUICK * len(DOMAINS)


def invoke(*arguments):
    return CliRunner().invoke(app, ["demo", *arguments])


def test_own_classes_and_one_method(tmp_path):
    given = [
        "--quick",
        "--classes",
        "sailboat, kitten,giraffe",
        "--method",
        "entmin",
        "--seed",
        "3",
        "--json",
    ]
    result = invoke(*given, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)
    assert results["classes"] == ["sailboat", "kitten", "giraffe"]
    assert results["seed"] == 3
    assert list(results["methods"]) == ["ensemble", "entmin"]
    assert results["methods"]["ensemble"]["average"] > 60
    assert "No pictures of giraffe" in result.stderr
    assert (tmp_path / "figure.png").exists()


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
