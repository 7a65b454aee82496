"""Clauses of the contract about state: forgetting it, saving it, refusing a wrong one, its size."""

import copy
import io
from collections.abc import Iterator

import torch
from torch import Tensor

from ramen.methods._method import Method
from ramen.methods._registry import create
from ramen.methods._state import CONTENT
from ramen.models.classifier import ZeroShotClassifier
from ramen.testing.bench import Bench, assert_same

_COUNTERS = 64  # bytes: a few counters are no memory of the stream


def check_reset(bench: Bench) -> None:
    """``reset`` equals fresh."""
    method = bench.fresh()
    first = bench.run(method)
    method.reset()
    assert method.images_seen == 0, "images_seen is not 0 after reset"
    assert method.images_refused == 0, "images_refused is not 0 after reset"
    assert_same(first, bench.run(method), "after reset")


def check_state(bench: Bench) -> None:
    """A saved state is plain tensors, stays as it is whatever comes later, and continues bit for bit."""
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
    state = _run_and_saved(bench, method)
    foreign = {what: bench.make(other) for what, other in _other_classifiers(own).items()}
    foreign["another seed"] = bench.make(own, seed=method.seed + 1)
    foreign["another method"] = create("tent" if method.info.name == "ensemble" else "ensemble", own)
    for what, other_method in foreign.items():
        _assert_refused(method, _run_and_saved(bench, other_method), f"of {what}")
    version = {**state, "header": torch.tensor(list(b'{"version": 99}'), dtype=torch.uint8)}
    _assert_refused(method, version, "of another version")
    _assert_refused(method, {k: v for k, v in state.items() if k != "header"}, "without a header")
    _assert_unchanged(bench, method)


def check_damaged_state(bench: Bench) -> None:
    """A state with missing, additional, non-finite or wrongly shaped parts is refused and changes nothing."""
    method = bench.fresh()
    state = _run_and_saved(bench, method)
    for what, damaged in _damaged(state):
        _assert_refused(method, damaged, what)
    _assert_unchanged(bench, method)


def check_other_parameters(bench: Bench) -> None:
    """A state of other parameters is refused, or fits: within ``memory_bytes``, and with finite answers.

    Tried for larger values of every parameter that is a whole number, most likely the size of something.
    """
    fresh = bench.fresh()
    if not _content(fresh):
        return
    sizes = [name for name in fresh.info.defaults if type(getattr(fresh, name, None)) is int]
    sizes.remove("seed")
    for name in sizes:
        value = getattr(bench.fresh(), name) * 10
        try:
            larger = bench.make(bench.classifier, **{name: value})
        except (ValueError, MemoryError):  # beyond another parameter, or what is free here
            continue
        method = bench.fresh()
        try:
            method.load_state_dict(_run_and_saved(bench, larger, stop=None))
        except ValueError:
            continue
        kept, declared = _kept_bytes(method), method.memory_bytes()
        what = f"a state of {name}={value} was accepted by one of {name}={getattr(method, name)}"
        assert kept <= declared + _COUNTERS, f"{what}: {kept} bytes, {declared} declared"
        assert all(out.logits.isfinite().all() for out in bench.run(method)), f"{what}: answers not finite"


def _run_and_saved(bench: Bench, method: Method, stop: int | None = 2) -> dict[str, Tensor]:
    bench.run(method, stop=stop)
    return method.state_dict()


def _assert_unchanged(bench: Bench, method: Method) -> None:
    """After two batches and many refused states it continues like one that has seen the two batches."""
    other = bench.fresh()
    bench.run(other, stop=2)
    assert_same(bench.run(other, start=2), bench.run(method, start=2), "after refused states")


def _other_classifiers(own: ZeroShotClassifier) -> dict[str, ZeroShotClassifier]:
    renamed = copy.copy(own)
    renamed.classes = ("a new name", *own.classes[1:])
    other_weights = copy.copy(own)
    other_weights.encoder = copy.copy(own.encoder)
    other_weights.encoder.base = own.encoder.base + 0.01
    renamed._fingerprint = other_weights._fingerprint = other_weights._encoder_hash = None
    return {"other classes": renamed, "another model": other_weights}


def _damaged(state: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    yield "with an additional part", {**state, "content.unknown": torch.zeros(3)}
    yield "with a negative number of images", {**state, "images_seen": torch.tensor(-1)}
    for name in (name for name in state if name.startswith("content.")):
        tensor = state[name]
        if tensor.is_floating_point() and tensor.numel():
            damaged = tensor.clone()
            damaged.view(-1)[0] = torch.nan
            yield f"with NaN in {name}", {**state, name: damaged}
        wider = torch.cat([tensor.flatten(), tensor.flatten()[:1]])
        yield f"with another shape of {name}", {**state, name: wider[:, None, None, None]}
        yield f"with another type of {name}", {**state, name: tensor.to(torch.complex64)}
        yield f"without {name}", {other: value for other, value in state.items() if other != name}


def _assert_refused(method: Method, state: dict[str, Tensor], what: str) -> None:
    try:
        method.load_state_dict(state)
    except ValueError as error:
        assert str(error), f"the refusal of a state {what} says nothing"
    else:
        raise AssertionError(f"a state {what} was accepted")


def check_bounded_memory(bench: Bench) -> None:
    """What is kept of the stream never takes more than ``memory_bytes`` says."""
    method = bench.fresh()
    for _ in range(4):
        bench.run(method)
        kept, declared = _kept_bytes(method), method.memory_bytes()
        assert kept <= declared + _COUNTERS, f"{kept} bytes kept, {declared} declared"


def _kept_bytes(method: Method) -> int:
    return sum(tensor.nbytes for tensor in _content(method).values())


def _content(method: Method) -> dict[str, Tensor]:
    """What of a saved state is of the stream."""
    return {name: t for name, t in method.state_dict().items() if name.startswith(CONTENT)}
