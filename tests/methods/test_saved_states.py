"""States that an earlier version saved still load, and continue as they did then.

``tests/fixtures/saved_states.safetensors`` was written before methods declared their state. It has, for each
method, its ``state_dict()`` after 16 images of noise, and the logits that followed for 8 more.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ramen
from ramen.models.tiny_clip.model import load_tiny

FILE = Path(__file__).parents[1] / "fixtures" / "saved_states.safetensors"
SAVED = sorted({key.split("/")[0] for key in load_file(FILE) if "/" in key})
PARAMETERS = {
    "ramen": {"capacity": 4, "topk": 2, "beta": 1.0, "lr": 2e-2, "codec": "sign"},
    "note": {"memory": 3, "lr": 1e-3},
    "rotta": {"memory": 3, "nu": 0.1},
    "tent": {"lr": 1e-3},
    "sar": {"lr": 1e-3, "reset_below": 0.0, "margin": 1.0},
    "mint": {"prior": 100.0},
    "dmn": {"capacity": 4},
    "watt": {"rounds": 1},
    "clipartt": {"iterations": 1},
}


@pytest.fixture(scope="module")
def saved() -> dict[str, torch.Tensor]:
    return load_file(FILE)


@pytest.fixture(scope="module")
def classifier() -> ramen.ZeroShotClassifier:
    return load_tiny(["cat", "house", "sailboat"])


@pytest.mark.parametrize("name", SAVED)
def test_it_continues(name: str, saved: dict, classifier: ramen.ZeroShotClassifier) -> None:
    state = {
        key.removeprefix(f"{name}/"): value for key, value in saved.items() if key.startswith(f"{name}/")
    }
    expected = state.pop("expected")
    method = ramen.create(name, classifier, **PARAMETERS.get(name, {}), seed=3)
    fresh = method.state_dict()
    method.load_state_dict(state)
    assert method.images_seen == 16
    assert method.state_dict().keys() == fresh.keys() == state.keys()
    logits = method.predict(saved["images"].float()[16:]).logits
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
