"""A method's state in a file: complete or absent, and never loaded if a byte of it has changed."""

import os
import random

import pytest
import torch
from safetensors.torch import load_file

from ramen import testing
from ramen.state import open_store
from tests.state.streams import assert_same_state, batches, make, run

FLIPS = 1000 if os.environ.get("RAMEN_SLOW_TESTS") else 60


@pytest.fixture
def method():
    method = make()
    run(method, None, batches(30))
    return method


def test_what_was_saved_is_loaded(method, tmp_path):
    method.save(tmp_path / "new folder" / "state")
    again = make()
    again.load(tmp_path / "new folder" / "state")
    assert_same_state(method.state_dict(), again.state_dict())
    batch = batches(5, seed=1)[0]
    assert torch.equal(method.predict(batch).logits, again.predict(batch).logits)


def test_the_file_is_one_of_safetensors(method, tmp_path):
    method.save(tmp_path / "state")
    assert_same_state(load_file(tmp_path / "state"), method.state_dict())


def test_every_flipped_byte_is_refused(method, tmp_path):
    path = tmp_path / "state"
    method.save(path)
    good, draw, before = path.read_bytes(), random.Random(0), method.state_dict()
    for _ in range(FLIPS):
        bad = bytearray(good)
        bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="state is damaged, or no saved state"):
            method.load(path)
    assert_same_state(method.state_dict(), before)


def test_a_failed_save_leaves_the_old_file(method, tmp_path, monkeypatch):
    path = tmp_path / "state"
    method.save(path)
    before = path.read_bytes()
    run(method, None, batches(5, seed=1))
    monkeypatch.setattr("ramen.utils.files.os.fsync", _no_room)
    with pytest.raises(OSError, match="No space left"):
        method.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def _no_room(handle):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("content", [b"", b"12345678", b"\xff" * 100])
def test_other_files_are_refused(method, tmp_path, content):
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(ValueError, match="damaged, or no saved state"):
        method.load(tmp_path / "state")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("used", lambda t: torch.tensor(-5)),
        ("used", lambda t: torch.tensor(10**15)),
        ("entropies", lambda t: t - 100),
        ("scales", lambda t: -t - 1),
        ("numbers", lambda t: t - 10**6),
        ("counts", lambda t: t + 1),
        ("counts", lambda t: -t),
        ("seen", lambda t: -t),
    ],
)
def test_values_that_no_memory_has_are_refused(method, name, change):
    state, before = method.state_dict(), method.state_dict()
    state[f"content.{name}"] = change(state[f"content.{name}"])
    with pytest.raises(ValueError, match=r"in the state must be at least|state is damaged"):
        method.load_state_dict(state)
    assert_same_state(method.state_dict(), before)


def test_states_of_single_files_and_of_stores_are_the_same(method, tmp_path):
    store = open_store(tmp_path / "store", method)
    run(method, store, batches(5, seed=1))
    store.close()
    method.save(tmp_path / "file")
    one, two = make(classifier=testing.small_classifier()), make()
    one.load(tmp_path / "file")
    open_store(tmp_path / "store", two).close()
    assert_same_state(one.state_dict(), two.state_dict())
