"""``ramen models``."""

import json

from tests.helpers.ramen_command import ramen


def test_models_list():
    found = json.loads(ramen("models", "list", "RN101", "--json").stdout)
    assert {"name": "RN101/openai", "presets": ["cifar100c_rn101"]} in found
    assert all("RN101" in model["name"] for model in found)
    printed = ramen("models", "list", "ViT-L-14/openai")
    assert printed.stdout.split() == ["ViT-L-14/openai", "preset", "imagenetc"]
