"""``ramen models``."""

import json

from typer.testing import CliRunner

from ramen.cli import app

cli = CliRunner()


def test_models_list():
    found = json.loads(cli.invoke(app, ["models", "list", "RN101", "--json"]).stdout)
    assert {"name": "RN101/openai", "presets": ["cifar100c_rn101"]} in found
    assert all("RN101" in model["name"] for model in found)
    printed = cli.invoke(app, ["models", "list", "ViT-L-14/openai"])
    assert printed.stdout.split() == ["ViT-L-14/openai", "preset", "imagenetc"]
