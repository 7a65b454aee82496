import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from ramen.utils.sealed import DamagedError, seal, total_bytes, unseal

TENSORS = {
    "weights": torch.arange(12, dtype=torch.float32).view(3, 4),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
    "number": torch.tensor(-7),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "nothing": torch.empty(0, 3, dtype=torch.float16),
}


def sealed() -> bytes:
    return b"".join(seal(TENSORS, {"made by": "a test"}))


def test_what_is_sealed_comes_back():
    tensors, facts = unseal(sealed())
    assert facts == {"made by": "a test"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert total_bytes(seal(TENSORS)) == len(b"".join(seal(TENSORS)))


def test_other_readers_of_the_format_read_it():
    theirs = load(sealed())
    assert theirs.keys() == TENSORS.keys()
    assert all(torch.equal(theirs[name], TENSORS[name]) for name in TENSORS)


def test_every_changed_byte_is_found():
    good, draw = sealed(), random.Random(0)
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << draw.randrange(8)
        with pytest.raises(DamagedError):
            unseal(bad)


def test_every_missing_end_is_found():
    good = sealed()
    for length in range(len(good)):
        with pytest.raises(DamagedError):
            unseal(good[:length])
    with pytest.raises(DamagedError):
        unseal(good + b"x")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_refused(data):
    with pytest.raises(DamagedError):
        unseal(data)


def test_large_tensors_have_the_same_checksums():
    large = {name: torch.randn(300_000) for name in "ab"}
    assert torch.equal(unseal(b"".join(seal(large)))[0]["b"], large["b"])
