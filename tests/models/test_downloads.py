"""Weights that would have to be downloaded: at once a clear error without a network, nothing new with one."""

import hashlib
import io
import os
import socket
import threading
from pathlib import Path

import huggingface_hub
import open_clip
import pytest
import torch
from safetensors.torch import save

from ramen.models import checkpoints as downloads
from ramen.models.checkpoints import find_web_file, why_unreachable
from ramen.models.classifier import ZeroShotClassifier
from tests.fakes.model_hub import model_hub

CLASSES = ["cat", "dog"]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def tagged(tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiny model with a tag whose weights are on the hub."""
    record = {"tiny": {"hf_hub": "someone/tiny/", "mean": None, "std": None}}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, tiny_model, record)
    return tiny_model


def use(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = huggingface_hub.constants
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize(
    ("model", "tag", "missing"),
    [
        ("tiny", {"hf_hub": "someone/tiny/"}, "the checkpoint of .*/someone/tiny/resolve/main/"),
        ("tiny", {"url": "{address}/tiny.pt"}, r"the checkpoint of .*/tiny\.pt cannot be reached: .*refused"),
        ("hf-hub:someone/tiny", None, "the configuration of hf-hub:someone/tiny"),
        ("ViT-B-16-SigLIP", "webli", "the tokenizer of ViT-B-16-SigLIP"),  # its weights are in the cache
    ],
)
def test_nothing_listens(
    model: str, tag: object, missing: str, tagged: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = f"http://127.0.0.1:{closed_port()}"
    use(address, monkeypatch)
    if isinstance(tag, dict):
        record = {name: value.replace("{address}", address) for name, value in tag.items()}
        record = {"tiny": {**record, "mean": None, "std": None}}
        monkeypatch.setitem(open_clip.pretrained._PRETRAINED, tagged, record)
        model, tag = tagged, "tiny"
    elif tag:
        in_cache = "open_clip_model.safetensors"
        found = lambda repo, name, **given: "x" if name == in_cache else None  # noqa: E731
        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", found)
    before = dict(os.environ)
    with pytest.raises(ConnectionError, match=missing) as error:
        ZeroShotClassifier.from_open_clip(model, tag, CLASSES, cache_dir=tmp_path)
    for said in (f"cache {tmp_path}", "cannot be reached: ", 'pretrained="weights.safetensors"'):
        assert said in str(error.value)
    assert dict(os.environ) == before


def test_it_asks_once(tagged: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server that drops every connection is not asked again and again."""
    with model_hub({}, drops=True) as hub:
        use(hub.address, monkeypatch)
        with pytest.raises(ConnectionError, match="cannot be reached"):
            ZeroShotClassifier.from_open_clip(tagged, "tiny", CLASSES, cache_dir=tmp_path)
        assert len(hub.asked) == 1


def test_offline_mode_asks_nobody(tagged: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with model_hub({}) as hub:
        use(hub.address, monkeypatch)
        with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE is set"):
            ZeroShotClassifier.from_open_clip(tagged, "tiny", CLASSES, cache_dir=tmp_path)
        assert not hub.asked


def test_with_a_network_the_weights_are_downloaded_and_then_kept(
    tagged: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    weights = save(open_clip.create_model(tagged).state_dict())
    with model_hub({"open_clip_model.safetensors": weights}) as hub:
        use(hub.address, monkeypatch)
        first = ZeroShotClassifier.from_open_clip(tagged, "tiny", CLASSES, cache_dir=tmp_path)
        assert any(asked.startswith("GET ") for asked in hub.asked)
    # The hub is gone: the cache is enough.
    again = ZeroShotClassifier.from_open_clip(tagged, "tiny", CLASSES, cache_dir=tmp_path)
    assert again.fingerprint() == first.fingerprint()


def test_a_name_that_is_looked_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(downloads, "urlopen", lambda *given, **options: over.wait(60) and io.BytesIO())
    assert why_unreachable("https://example.org", -0.99) == "no answer in -0.99 seconds"
    over.set()


@pytest.mark.parametrize("status", [200, 404])
def test_any_answer_means_reachable(status: int) -> None:
    with model_hub({"file": b"x"} if status == 200 else {}) as hub:
        assert why_unreachable(f"{hub.address}/someone/tiny/resolve/main/file") is None
        assert len(hub.asked) == 1


def test_a_file_of_the_web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As torchvision's weights: the name states the hash, and a file that was downloaded stays."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    content = b"weights"
    right, wrong = f"a-{hashlib.sha256(content).hexdigest()[:8]}.pth", "a-00000000.pth"
    with model_hub({right: content, wrong: content}) as hub:
        file = find_web_file(f"{hub.address}/{right}")
        assert file.read_bytes() == content
        with pytest.raises(RuntimeError, match="invalid hash"):
            find_web_file(f"{hub.address}/{wrong}")
    assert find_web_file(f"{hub.address}/{right}") == file
    with pytest.raises(ConnectionError, match="cannot be reached"):
        find_web_file(f"{hub.address}/{wrong}")
