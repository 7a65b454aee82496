"""Clauses of the contract about bad input: images that are not finite or overflow, wrong arguments."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ramen.methods._registry import fields_of
from ramen.testing.bench import Bench, assert_same, tolerance


def check_non_finite_images(bench: Bench) -> None:
    """NaN and infinite images get a finite zero-shot answer, are counted, and do not hurt their batch.

    A batch of nothing else teaches nothing.
    """
    method = bench.fresh()
    bench.run(method, stop=1)
    images = bench.batches[1].clone()
    images[1], images[3, 0, 0, 0] = torch.nan, torch.inf
    out = method.predict(images)
    assert out.logits.isfinite().all(), "logits are not finite"
    assert out.fallback.tolist() == [False, True, False, True, False, False], "fallback marks other images"
    mended = torch.nan_to_num(images, nan=0.0, posinf=0.0, neginf=0.0)
    expected = bench.classifier.logits(bench.classifier.encode(mended)).to(images.device)
    for bad in (1, 3):
        close = torch.allclose(out.logits[bad], expected[bad], atol=tolerance(bench))
        assert close, "a non-finite image is not answered zero-shot with its bad pixels set to 0"
    assert method.images_refused == 2, f"images_refused is {method.images_refused}, not 2"
    kept = [
        name for name, t in method.state.content().items() if t.is_floating_point() and not t.isfinite().all()
    ]
    assert not kept, f"non-finite numbers were kept in {', '.join(kept)}"
    other = bench.fresh()
    other.load_state_dict(method.state_dict())
    only_nan = method.predict(torch.full_like(images, torch.nan))
    assert only_nan.logits.isfinite().all(), "a batch of NaN images has no finite answer"
    after = bench.run(method, start=2)
    assert all(o.logits.isfinite().all() for o in after), "answers after a NaN image are not finite"
    if not method.info.random:  # what is drawn may depend on the place in the stream
        for one, found in zip(bench.run(other, start=2), after, strict=True):
            close = torch.allclose(found.logits, one.logits, atol=tolerance(bench))
            assert close, "a batch of NaN images has changed later answers"


def check_overflowing_images(bench: Bench) -> None:
    """An image that overflows in the encoder, though its pixels are finite, leaves its batch alone."""
    images = bench.batches[1].clone()
    images[2] = 1e38
    huge = bench.fresh().predict(images)
    images[2] = torch.nan
    missing = bench.fresh().predict(images)
    assert huge.logits.isfinite().all(), "logits are not finite"
    if huge.fallback[2]:
        others = [0, 1, 3, 4, 5]
        close = torch.allclose(huge.logits[others], missing.logits[others], atol=tolerance(bench))
        assert close, "the other images of the batch are answered otherwise than without it"
        assert not huge.fallback[others].any(), "other images of the batch are refused"


def check_bad_input(bench: Bench) -> None:
    """Wrong input is refused by name and changes nothing."""
    good = bench.batches[0]
    bad: dict[str, object] = {
        "a list": [good],
        "uint8": torch.zeros(2, 3, *good.shape[2:], dtype=torch.uint8),
        "no batch axis": good[0],
        "one channel": good[:, :1],
        "an empty batch": good[:0],
    }
    method = bench.fresh()
    for what, images in bad.items():
        _assert_refused("images", what, method.predict, images)
    for tags in (torch.zeros(len(good)), torch.zeros(len(good) + 1, dtype=torch.int64)):
        _assert_refused("tags", f"{tags.dtype} of shape {tuple(tags.shape)}", method.predict, good, tags=tags)
    assert_same(bench.run(bench.fresh()), bench.run(method), "after refused input")


def check_bad_parameters(bench: Bench) -> None:
    """A parameter that is not what it should be, or beyond what its field allows, is refused by name."""
    for name, value in _bad_parameters(bench):
        _assert_refused(name, f"{name}={value!r}", bench.make, bench.classifier, **{name: value})


def _assert_refused(named: str, what: str, call: Callable[..., object], *given: Any, **options: Any) -> None:
    try:
        call(*given, **options)
    except (TypeError, ValueError) as error:
        assert named in str(error), f"the error for {what} does not name {named}: {error}"
    else:
        raise AssertionError(f"{what} was accepted as {named}")


def _bad_parameters(bench: Bench) -> Iterator[tuple[str, object]]:
    method = bench.fresh()
    for name, default in method.info.defaults.items():
        if isinstance(default, bool | int | float | str):
            yield from ((name, value) for value in ("many", None))
    for name, limits in fields_of(type(method)).items():
        step = 1 if limits.kind is int else 1e-3
        below = None if limits.ge is None else limits.ge - step
        above = None if limits.le is None else limits.le + step
        yield from ((name, v) for v in (limits.gt, limits.lt, below, above) if v is not None)
