"""Serving a classifier of one's own program: in a block, and until a signal comes."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from torch import nn

import ramen
from ramen.serve.http.auth import create_token
from tests.helpers.leftovers import left_running

IMAGES = [("light", np.full((16, 16, 3), 220, np.uint8)), ("dark", np.full((16, 16, 3), 30, np.uint8))]


class Network(nn.Module):
    """A network that no library knows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images)


@pytest.fixture
def clf() -> ramen.ZeroShotClassifier:
    torch.manual_seed(0)
    return ramen.ZeroShotClassifier(
        encoder=Network(),
        class_embeddings=torch.randn(2, 8),
        logit_scale=10.0,
        classes=["cat", "dog"],
        preprocess=ramen.Preprocess((16, 16)),
    )


def test_a_block_and_what_it_has_learned(clf: ramen.ZeroShotClassifier, tmp_path: Path) -> None:
    for seen in (2, 4):
        with (
            ramen.serve.running(clf, state=tmp_path, name="mine", max_batch=4) as service,
            ramen.Client(service.url, stream="camera-1") as client,
        ):
            model = client.model()
            assert (model.name, model.classes, model.max_batch) == ("mine", ("cat", "dog"), 4)
            answers = list(client.classify_many(IMAGES))
            assert [answer.key for answer in answers] == ["light", "dark"]
            assert answers[-1].state_version == seen
    assert not left_running()
    with pytest.raises(httpx.ConnectError):
        httpx.get(service.url)


def test_several_at_a_time_end_with_their_blocks(clf: ramen.ZeroShotClassifier) -> None:
    def fails() -> None:
        with ramen.serve.running(clf, method="tent", parameters={"lr": 1e-4}) as other:
            assert one.url != other.url
            assert httpx.get(f"{other.url}/v1/model").json()["method"] == "tent"
            raise ZeroDivisionError

    with ramen.serve.running(clf) as one:
        with pytest.raises(ZeroDivisionError):
            fails()
        assert httpx.get(f"{one.url}/healthz").status_code == 200
    assert not left_running()


def test_tokens(clf: ramen.ZeroShotClassifier, tmp_path: Path) -> None:
    token = create_token(tmp_path / "tokens.json", "a", ["classify"])
    with ramen.serve.running(clf, tokens=tmp_path / "tokens.json") as service:
        assert httpx.get(f"{service.url}/v1/model").status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{service.url}/v1/model", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_bacht": 3}, "max_batch"),
        ({"max_batch": 0}, "max_batch"),
        ({"host": "0.0.0.0"}, "--host"),
        ({"method": "nothing"}, "nothing"),
        ({"max_body_bytes": 0}, "max_bytes"),
    ],
)
def test_wrong_settings_are_named(
    clf: ramen.ZeroShotClassifier, wrong: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=named), ramen.serve.running(clf, **wrong):
        pass
    assert not left_running()


SCRIPT = """
import torch
from torch import nn
import ramen

torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
clf = ramen.ZeroShotClassifier(
    encoder=network, class_embeddings=torch.randn(2, 8), logit_scale=10.0, classes=["cat", "dog"],
    preprocess=ramen.Preprocess((16, 16)),
)
ramen.serve.run(clf, port=0, state="state")
print("saved")
"""


def test_until_a_signal_comes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().rpartition(" at ")[2].strip()
        with ramen.Client(url, stream="camera-1") as client:
            assert len(list(client.classify_many(IMAGES))) == 2
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "saved\n"
    assert process.returncode == 0
    assert [*tmp_path.rglob("state/**/camera-1")]
