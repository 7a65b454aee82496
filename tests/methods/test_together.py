"""Steps of several streams with shared passes, beside each method's own ``predict``."""

from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.methods import Method, predict_together
from ramen.methods._runner import recordings_of
from tests.contract.settings import FEWER_STEPS
from tests.fakes.traced_graphs import TracingRecorder

FEW = {
    "ramen": {"capacity": 6, "topk": 2, "visibility": "causal"},
    "tda": {},
    "dmn": {"capacity": 4},
    "onzeta": {"horizon": 10},
    "clip": {},
    "ensemble": {},
    "tent": {},
    "zero": {"views": 4},
}


def streams(kind: str, name: str = "ramen", dtype: str = "float32") -> list[Method]:
    """Three streams with the same classes, and one with others."""
    clf = testing.small_classifier(kind, dtype=dtype)
    other = clf.with_classes(["north", "south", "west"])
    parameters = FEW[name] if name in FEW else FEWER_STEPS.get(name, {})
    return [ramen.create(name, c, **parameters) for c in (clf, clf, clf, other)]


def batches(dtype: torch.dtype = torch.float32) -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    for counts in [(1, 3, 2, 4), (2, 1, 1, 1), (5, 2, 3, 1), (1, 1, 6, 2)]:
        yield [torch.randn(count, 3, 32, 32, generator=generator).to(dtype) for count in counts]


@pytest.mark.parametrize("sizes", [(), (16,), (2, 4)], ids=str)
@pytest.mark.parametrize("name", FEW)
def test_each_stream_is_answered_as_if_alone(name: str, sizes: tuple[int, ...], tower_kind: str) -> None:
    check_as_if_alone(tower_kind, name, sizes)


@pytest.mark.parametrize("name", sorted(set(ramen.list_methods()) - set(FEW)))
def test_every_method_is_answered_as_if_alone(name: str) -> None:
    check_as_if_alone("vit", name, (4,))


def check_as_if_alone(tower_kind: str, name: str, sizes: tuple[int, ...]) -> None:
    together = streams(tower_kind, name, "float64")
    alone = streams(tower_kind, name, "float64")
    for parts in batches(torch.float64):
        answers = predict_together(list(zip(together, parts, strict=True)), batch_sizes=sizes)
        for method, images, out in zip(alone, parts, answers, strict=True):
            expected = method.predict(images)
            assert isinstance(out, ramen.Prediction)
            torch.testing.assert_close(out.logits, expected.logits, rtol=0, atol=1e-9)
            torch.testing.assert_close(out.zero_shot_logits, expected.zero_shot_logits, rtol=0, atol=1e-9)
    for method, expected_method in zip(together, alone, strict=True):
        assert method.images_seen == expected_method.images_seen
        for key, value in expected_method.state_dict().items():
            torch.testing.assert_close(method.state_dict()[key], value, rtol=0, atol=1e-9)


def test_support_is_that_of_each_stream(tower_kind: str) -> None:
    together, alone = streams(tower_kind), streams(tower_kind)
    for parts in batches():
        answers = predict_together(list(zip(together, parts, strict=True)), return_support=True)
        for method, images, out in zip(alone, parts, answers, strict=True):
            expected = method.predict(images, return_support=True).support
            assert isinstance(out, ramen.Prediction)
            assert out.support is not None
            assert expected is not None
            assert torch.equal(out.support.numbers, expected.numbers)
            assert torch.equal(out.support.valid, expected.valid)


@pytest.mark.parametrize("name", ["ramen", "tda", "ensemble"])
def test_invariant_answers_do_not_depend_on_the_batch(name: str, tower_kind: str) -> None:
    """Bit for bit: alone in the batch, among others, in whatever places and cuts."""
    alone, among, _, other = streams(tower_kind, name)
    images = torch.randn(12, 3, 32, 32)
    options: dict[str, Any] = {"batch_sizes": [8], "invariant": True, "return_support": True}
    expected = [predict_together([(alone, image[None])], **options)[0] for image in images]
    answers = []
    for first, last, strangers, stranger_first in [(0, 3, 5, True), (3, 4, 1, False), (4, 12, 2, True)]:
        parts = [(among, images[first:last]), (other, torch.randn(strangers, 3, 32, 32))]
        found = predict_together(parts[::-1] if stranger_first else parts, **options)
        answers.append(found[int(stranger_first)])
    got = torch.cat([answer.logits for answer in answers if isinstance(answer, ramen.Prediction)])
    assert torch.equal(got, torch.cat([e.logits for e in expected if isinstance(e, ramen.Prediction)]))
    states = alone.state_dict(), among.state_dict()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_support_of_images_that_found_different_numbers_of_entries() -> None:
    method = ramen.create("ramen", testing.small_classifier(), capacity=6, topk=4, visibility="causal")
    twin = ramen.create("ramen", testing.small_classifier(), capacity=6, topk=4, visibility="causal")
    images = torch.randn(9, 3, 32, 32)
    (out,) = predict_together([(method, images)], batch_sizes=[9], invariant=True, return_support=True)
    assert isinstance(out, ramen.Prediction)
    assert out.support is not None
    for place, image in enumerate(images):
        expected = twin.predict(image[None], return_support=True).support
        assert expected is not None
        found = out.support.numbers[place][out.support.valid[place]]
        assert sorted(found.tolist()) == sorted(expected.numbers[expected.valid].tolist())


def test_one_that_fails_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    methods, twins = streams("vit"), streams("vit")
    monkeypatch.setattr(methods[1].memory, "select", lambda *args, **kwargs: 1 / 0)
    for parts in batches():
        answers = predict_together(list(zip(methods, parts, strict=True)))
        assert isinstance(answers[1], ZeroDivisionError)
        for place in (0, 2, 3):
            out = answers[place]
            assert isinstance(out, ramen.Prediction)
            torch.testing.assert_close(out.logits, twins[place].predict(parts[place]).logits)


def test_a_first_pass_that_fails_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = streams("vit")
    encoder = methods[0].classifier.encoder
    monkeypatch.setattr(type(encoder), "__call__", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predict_together([(method, torch.randn(2, 3, 32, 32)) for method in methods])
    assert [method.images_seen for method in methods] == [0] * 4
    assert [len(method.memory) for method in methods] == [0] * 4


def test_a_second_pass_that_fails_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = streams("vit")
    encode = methods[0].classifier.encode

    def failing(images: Tensor, affine: Tensor, **options: Any) -> Tensor:
        return encode(images, affine, **options) if affine.requires_grad else 1 / 0

    monkeypatch.setattr(methods[0].classifier, "encode", failing)
    answers = predict_together([(method, torch.randn(2, 3, 32, 32)) for method in methods])
    assert all(isinstance(answer, ZeroDivisionError) for answer in answers)
    assert [method.images_seen for method in methods] == [2] * 4


def test_images_that_are_not_finite_leave_no_trace() -> None:
    methods = streams("vit")
    bad = torch.full((2, 3, 32, 32), torch.nan)
    answers = predict_together([(methods[0], bad), (methods[1], torch.randn(2, 3, 32, 32))])
    first, second = answers
    assert isinstance(first, ramen.Prediction)
    assert isinstance(second, ramen.Prediction)
    assert first.fallback.all()
    assert not second.fallback.any()
    assert first.logits.isfinite().all()
    assert (len(methods[0].memory), len(methods[1].memory)) == (0, 2)
    assert methods[0].images_refused == 2


def test_what_makes_no_sense_is_refused() -> None:
    clf, images = testing.small_classifier(), torch.randn(2, 3, 32, 32)
    method = ramen.create("ramen", clf)
    with pytest.raises(ValueError, match="parts must hold at least one"):
        predict_together([])
    with pytest.raises(ValueError, match="parts must name each method once"):
        predict_together([(method, images), (method, images)])
    with pytest.raises(ValueError, match="parts must share one encoder"):
        predict_together([(method, images), (ramen.create("ramen", testing.small_classifier()), images)])
    with pytest.raises(ValueError, match=r"invariant=True needs one batch size, got batch_sizes=\(2, 4\)"):
        predict_together([(method, images)], batch_sizes=(2, 4), invariant=True)
    with pytest.raises(ValueError, match="batch_sizes must be"):
        predict_together([(method, images)], batch_sizes=(0,))
    with pytest.raises(ValueError, match="images must be a float tensor"):
        predict_together([(method, images[:, :1])])
    assert method.images_seen == 0


@pytest.mark.parametrize("invariant", [False, True])
def test_replayed_steps_are_those_of_any_other_stream(invariant: bool) -> None:
    """As on a GPU: memories that grow and wrap around, few and many images, unusable ones among them."""
    clf, recorder = testing.small_classifier(), TracingRecorder()
    plain = [ramen.create("ramen", clf, **FEW["ramen"]) for _ in range(3)]
    recording = clf.with_classes(list(clf.classes))
    recording.recorder = lambda: recorder  # type: ignore[method-assign]
    replayed = [ramen.create("ramen", recording, **FEW["ramen"]) for _ in range(3)]
    recorder.methods += replayed
    for method in (*plain, *replayed):
        method.memory.fixed_shapes = True
    generator = torch.Generator().manual_seed(5)
    for number in range(24):
        counts = [(1, 3, 9), (2, 8, 1), (40, 1, 4)][number % 3]
        images = [torch.randn(count, 3, 32, 32, generator=generator) for count in counts]
        images[number % 3][0, 0, 3, 3] = torch.nan
        given = {"return_support": True, "batch_sizes": (16,), "invariant": invariant}
        expected, found = (
            predict_together(list(zip(methods, images, strict=True)), **given)
            for methods in (plain, replayed)
        )
        for one, other in zip(found, expected, strict=True):
            assert isinstance(one, ramen.Prediction)
            assert isinstance(other, ramen.Prediction)
            assert torch.equal(one.fallback, other.fallback)
            torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
            valid = other.support.valid
            assert torch.equal(one.support.valid, valid)
            assert torch.equal(one.support.numbers[valid], other.support.numbers[valid])
    for one, other in zip(replayed, plain, strict=True):
        state, expected_state = one.state_dict(), other.state_dict()
        del expected_state["header"]  # it names the classifier
        for name, tensor in expected_state.items():
            is_column = name.removeprefix("content.") in one.memory.columns
            rows = slice(1, None) if is_column else ...  # the first row of a column belongs to no entry
            assert state[name][rows].equal(tensor[rows]), name
        assert one.images_seen == other.images_seen
        assert one.images_refused == 8
    assert sum(graph.replays for graph in recorder.graphs) > 40


def test_recordings_of_streams_that_are_gone_or_not_used_are_dropped(monkeypatch) -> None:
    monkeypatch.setattr("ramen.methods._runner._MOST_METHODS", 2)
    clf, recorder = testing.small_classifier(), TracingRecorder()
    clf.recorder = lambda: recorder  # type: ignore[method-assign]
    methods = [ramen.create("ramen", clf, **FEW["ramen"]) for _ in range(3)]
    for method in (*methods[:2], methods[0], methods[2]):
        predict_together([(method, torch.randn(1, 3, 32, 32))])
    assert list(recordings_of(clf)._answers) == [id(methods[0]), id(methods[2])]
    gone = ref(methods[2])
    del methods[2], method
    assert gone() is None  # nothing here keeps a method alive


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shared_passes_on_a_gpu(dtype: str) -> None:
    """Passes and steps are CUDA graphs after a few calls; the first images are answered without."""
    clf = testing.small_classifier("vit", dtype=dtype, device="cuda")
    together, alone = ([ramen.create("ramen", clf, **FEW["ramen"]) for _ in range(3)] for _ in range(2))
    equal = total = 0
    for _ in range(40):  # until the memories have grown for the last time
        parts = [torch.randn(count, 3, 32, 32, device="cuda") for count in (1, 3, 2)]
        answers = predict_together(list(zip(together, parts, strict=True)), batch_sizes=(8,))
        for method, images, out in zip(alone, parts, answers, strict=True):
            assert isinstance(out, ramen.Prediction)
            equal += int((out.labels == method.predict(images).labels).sum())
            total += len(images)
    assert equal >= 0.95 * total
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.memory._index["counts"].sum(), other.memory._index["counts"].sum())
    recorded = [answers for *_, answers in recordings_of(clf)._answers.values()]
    assert len(recorded) == 3
    assert all(any(step._recordings.values()) for step in recorded)
