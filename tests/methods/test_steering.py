"""The step that follows the stream, against its description in plain loops; and where it must not grow."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.methods._choices import BLOCK, LONGEST, MOVEMENT, SHORTEST, WINDOW

STEERED = {"defaults": "steered"}
SMALL = {"capacity": 30, "topk": 4, "codec": "fp32", **STEERED}


def stream(images: int, seed: int = 0) -> Tensor:
    return torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def answered(method: Any, images: Tensor, batch: int) -> tuple[Tensor, list[float]]:
    """Logits, and the step after each batch."""
    logits, steps = [], []
    for part in images.split(batch):
        logits.append(method.predict(part).logits)
        steps.append(method.step_in_use)
    return torch.cat(logits), steps


class Seen:
    """What steering is told about each image: caught at the passes, one row per image."""

    def __init__(self, method: Any) -> None:
        self.rows: list[dict[str, Tensor]] = []
        answer = method.answer

        def watched(second: Any, *kept: Tensor) -> Tensor:
            for z0, l0, z1, l1 in zip(*kept[:2], second.embeddings, second.logits, strict=True):
                self.rows.append({"z0": z0, "l0": l0, "z1": z1, "l1": l1})
            return answer(second, *kept)

        method.answer = watched


def information_of(rows: list[Tensor], weights: list[float]) -> float:
    total = sum(weights)
    p = [row.double().softmax(0) for row in rows]
    mean = sum(w * one for w, one in zip(weights, p, strict=True)) / total
    doubt = sum(w * -(one * one.log()).sum() for w, one in zip(weights, p, strict=True)) / total
    return float(-(mean * mean.log()).sum() - doubt)


def lengths_by_hand(seen: list[dict[str, Tensor]], classes: int) -> list[float]:
    """The length of the step of each block, and of the two that follow the last complete one."""
    lengths, sizes = [1.0, 1.0], []
    for block in range(len(seen) // BLOCK):
        sizes += [lengths[block]] * BLOCK
        shown = seen[: (block + 1) * BLOCK]
        weights = [math.exp(-BLOCK * (block - i // BLOCK) / WINDOW) for i in range(len(shown))]
        # older blocks fade with the images that came after them, a block at a time
        gain = information_of([row["l1"] for row in shown], weights) - information_of(
            [row["l0"] for row in shown], weights
        )
        moved = [float((r["z1"] - r["z0"]).norm()) / s for r, s in zip(shown, sizes, strict=True)]
        response = sum(w * m for w, m in zip(weights, moved, strict=True)) / sum(weights)
        labels = torch.zeros(classes, dtype=torch.float64)
        for row, weight in zip(shown, weights, strict=True):
            labels[int(row["l0"].argmax())] += weight / sum(weights)
        spread = math.exp(-sum(float(p * p.log()) for p in labels if p > 0))
        wanted = MOVEMENT * min(1.0, max(0.0, gain / min(0.5, math.log(classes) / 4))) / response
        most = 1.0 if spread < min(10, (1 + classes) / 2) else 1.5
        wanted = min(max(wanted, lengths[-1] / 1.5), lengths[-1] * most)
        lengths.append(min(max(wanted, SHORTEST), LONGEST))
    return lengths


@pytest.mark.parametrize("batch", [64, 50])
def test_steps_equal_their_description(batch: int) -> None:
    """Over five blocks: the length of every block follows from the blocks before the previous one."""
    clf = testing.small_classifier(dtype="float64")
    method = ramen.create("ramen", clf, visibility="causal", **SMALL)
    seen = Seen(method)
    images = stream(5 * BLOCK).double()
    used = []
    for part in images.split(batch):
        method.predict(part)
        used.append([float(one) for one in method.step_lengths])
    expected = lengths_by_hand(seen.rows, 5)
    assert used[-1] == pytest.approx(expected[-2:], rel=1e-4)
    assert len({round(length, 4) for length in expected}) > 3  # something happens
    # and the step is as long as that: the answers are those of steps that are given
    plain = ramen.create(
        "ramen", clf, visibility="causal", lr=method.lr * expected[2], guard=method.guard, **SMALL
    )
    logits = torch.cat([plain.predict(part).logits for part in images[: 3 * BLOCK].split(BLOCK)])
    again = ramen.create("ramen", clf, visibility="causal", **SMALL)
    steered = torch.cat([again.predict(part).logits for part in images[: 3 * BLOCK].split(BLOCK)])
    torch.testing.assert_close(steered[2 * BLOCK :], logits[2 * BLOCK :], atol=1e-4, rtol=0)
    assert not torch.allclose(steered[: 2 * BLOCK], logits[: 2 * BLOCK], atol=1e-2)


def test_causal_steps_do_not_depend_on_the_batch_size() -> None:
    clf, images = testing.small_classifier(dtype="float64"), stream(3 * BLOCK + 40).double()
    found = []
    for batch in (BLOCK - 29, 7, 3 * BLOCK):
        method = ramen.create("ramen", clf, visibility="causal", **SMALL)
        found.append((answered(method, images, batch)[0], method.step_in_use))
    for logits, step in found[1:]:
        assert_alike(logits, found[0][0])
        assert step == pytest.approx(found[0][1], rel=1e-3)


def assert_alike(found: Tensor, expected: Tensor) -> None:
    """Apart from images for which the order of a sum decides the sign of one that vanishes."""
    assert torch.equal(found.argmax(1), expected.argmax(1))
    assert ((found - expected).abs().amax(1) < 1e-3).double().mean() > 0.9


def test_shared_passes_and_images_one_by_one_take_the_same_steps() -> None:
    clf, images = testing.small_classifier(dtype="float64"), stream(3 * BLOCK).double()
    alone, together = (ramen.create("ramen", clf, visibility="causal", **SMALL) for _ in range(2))
    expected, _ = answered(alone, images, 48)
    found = []
    for part in images.split(48):
        outcome = ramen.methods.predict_together([(together, part)], batch_sizes=(48,), invariant=True)
        found.append(outcome[0].logits)
    assert_alike(torch.cat(found), expected)
    assert together.step_in_use == pytest.approx(alone.step_in_use, rel=1e-3)
    assert together.step_in_use != together.lr


def test_a_saved_stream_continues_with_its_step() -> None:
    clf, images = testing.small_classifier(), stream(4 * BLOCK)
    whole, first = (ramen.create("ramen", clf, **STEERED) for _ in range(2))
    expected, _ = answered(whole, images, 50)
    answered(first, images[:300], 50)
    second = ramen.create("ramen", clf, **STEERED)
    second.load_state_dict(first.state_dict())
    assert second.step_in_use == first.step_in_use != first.lr
    assert torch.equal(answered(second, images[300:], 50)[0], expected[300:])
    second.reset()
    assert second.step_in_use == second.lr


def test_a_given_step_stays() -> None:
    method = ramen.create("ramen", testing.small_classifier(), lr=0.02, **STEERED)
    assert set(answered(method, stream(3 * BLOCK), 50)[1]) == {0.02}
    assert method._most_images is None


def test_images_that_leave_no_trace_do_not_count() -> None:
    clf, images = testing.small_classifier(), stream(3 * BLOCK)
    method = ramen.create("ramen", clf, **STEERED)
    answered(method, torch.full_like(images, torch.nan), 50)
    assert method.step_in_use == method.lr
    assert int(method.step_end) == BLOCK


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_one_class_for_ever_never_lengthens_the_step(classes: int) -> None:
    """However the answers change, where all images are predicted to be of one class."""
    clf = testing.small_classifier()
    text = torch.randn(classes, 16, generator=torch.Generator().manual_seed(1))
    clf = ramen.ZeroShotClassifier(clf.encoder, text, 30.0)
    images = stream(1600)
    labels = torch.cat([clf.logits(clf.encode(part)).argmax(1) for part in images.split(200)])
    one = images[labels == labels.mode().values]
    steps = answered(ramen.create("ramen", clf, **STEERED), one[: 3 * BLOCK], 50)[1]
    assert len(one) > 2 * BLOCK
    assert steps == sorted(steps, reverse=True)


def test_the_same_noise_never_lengthens_the_step() -> None:
    noise = stream(1).expand(3 * BLOCK, -1, -1, -1) + 0.01 * stream(3 * BLOCK, seed=1)
    steps = answered(ramen.create("ramen", testing.small_classifier(), **STEERED), noise, 50)[1]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0]
