"""Stores and files that earlier versions wrote still load, and continue as they did then.

``tests/fixtures`` has what version 1 of the formats wrote after 16 of the images in ``saved_states``.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ramen
from ramen.models.tiny_clip.model import load_tiny
from ramen.state import dtypes_below, open_store

FIXTURES = Path(__file__).parents[1] / "fixtures"


def from_store(method, tmp_path):
    shutil.copytree(FIXTURES / "store_version_1", tmp_path / "store")
    store = open_store(tmp_path / "store", method)
    assert store.recovered is None
    assert [result.state_version for result in store.answers] == [16] * 4
    store.close()


def from_file(method, tmp_path):
    method.load(FIXTURES / "state_version_1.safetensors")


@pytest.mark.parametrize("load", [from_store, from_file])
def test_version_1(load, tmp_path):
    classifier = load_tiny(["cat", "house", "sailboat"])
    parameters = {"capacity": 4, "topk": 2, "beta": 1.0, "lr": 2e-2, "codec": "sign", "seed": 3}
    method, fresh = (ramen.create("ramen", classifier, **parameters) for _ in range(2))
    load(method, tmp_path)
    images = load_file(FIXTURES / "saved_states.safetensors")["images"].float()
    for batch in images[:16].split(4):
        fresh.predict(batch)
    assert method.images_seen == 16
    assert torch.equal(method.state_dict()["content.numbers"], fresh.state_dict()["content.numbers"])
    logits = [each.predict(images[16:]).logits for each in (method, fresh)]
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)  # other machines round in other ways


def test_a_store_of_version_1_does_not_say_its_dtype():
    assert list(dtypes_below(FIXTURES / "store_version_1")) == [None]
