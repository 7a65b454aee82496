"""Clauses of the contract about state: forgetting it, saving it, refusing a foreign one, its size."""

import copy
import io

import torch
from torch import Tensor

from ramen.methods._base import Method
from ramen.models.classifier import ZeroShotClassifier
from ramen.testing.bench import Bench, assert_same


def check_reset(bench: Bench) -> None:
    """``reset`` equals fresh."""
    method = bench.fresh()
    first = bench.run(method)
    method.reset()
    assert method.images_seen == 0, "images_seen is not 0 after reset"
    assert method.images_refused == 0, "images_refused is not 0 after reset"
    assert_same(first, bench.run(method), "after reset")


def check_state(bench: Bench) -> None:
    """A saved state is plain tensors, is not touched by what comes later, and continues bit for bit."""
    method = bench.fresh()
    bench.run(method, stop=2)
    state = method.state_dict()
    not_plain = [name for name, value in state.items() if type(value) is not Tensor]
    assert not not_plain, f"not plain tensors: {', '.join(not_plain)}"
    kept = copy.deepcopy(state)
    rest = bench.run(method, start=2)
    changed = [name for name in state if not torch.equal(state[name], kept[name])]
    assert not changed, f"a saved state changes with the method: {', '.join(changed)}"
    resumed = bench.fresh()
    resumed.load_state_dict(_saved_and_loaded(state))
    assert_same(rest, bench.run(resumed, start=2), "after loading a state")
    assert resumed.images_seen == method.images_seen, "images_seen was not continued"
    assert torch.equal(state["header"], kept["header"]), "loading changed the state"


def _saved_and_loaded(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Tensor] = torch.load(file, weights_only=True)
    return loaded


def check_foreign_state(bench: Bench) -> None:
    """A state of other classes, another model, method or version is refused and changes nothing."""
    own, method = bench.classifier, bench.fresh()
    first = bench.run(method, stop=2)
    header = method.state_dict()
    for what, other in _strangers(own).items():
        stranger = bench.make(other)
        bench.run(stranger, stop=1)
        _assert_refused(method, stranger.state_dict(), what)
    broken = {**header, "header": torch.tensor(list(b'{"version": 99}'), dtype=torch.uint8)}
    _assert_refused(method, broken, "another version")
    _assert_refused(method, {k: v for k, v in header.items() if k != "header"}, "no header")
    again = bench.fresh()
    assert_same(first, bench.run(again, stop=2), "a fresh run")
    assert_same(bench.run(again, start=2), bench.run(method, start=2), "after refused states")


def _strangers(own: ZeroShotClassifier) -> dict[str, ZeroShotClassifier]:
    renamed = copy.copy(own)
    renamed.classes = ("a new name", *own.classes[1:])
    other_weights = copy.copy(own)
    other_weights.encoder = copy.copy(own.encoder)
    other_weights.encoder.base = own.encoder.base + 0.01
    renamed._fingerprint = other_weights._fingerprint = None
    return {"other classes": renamed, "another model": other_weights}


def _assert_refused(method: Method, state: dict[str, Tensor], what: str) -> None:
    try:
        method.load_state_dict(state)
    except ValueError as error:
        assert str(error), f"the refusal of {what} says nothing"
    else:
        raise AssertionError(f"a state of {what} was accepted")


def check_bounded_memory(bench: Bench) -> None:
    """What is kept of the stream never takes more than ``memory_bytes`` says."""
    method = bench.fresh()
    for _ in range(4):
        bench.run(method)
        kept = sum(tensor.numel() * tensor.element_size() for tensor in method.content().values())
        # a few bytes of counters are no memory of the stream
        assert kept <= method.memory_bytes() + 64, f"{kept} bytes kept, {method.memory_bytes()} declared"
