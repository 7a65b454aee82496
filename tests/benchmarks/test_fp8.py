"""Rounded products: which ones are rounded, and that everything is as before afterwards."""

import pytest
import torch

import ramen
from ramen import testing
from ramen.encoder.fused.transformer import FusedTransformer
from tests.helpers.benchmark_scripts import load_benchmark

fp8 = load_benchmark("fp8")


def test_rows_have_scales_of_their_own() -> None:
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-2, 3)[:, None]
    error = (fp8.rounded(x) - x).abs()
    assert (error.amax(1) <= x.abs().amax(1) / 16).all()  # three bits behind the point, and the first one
    assert (error[:, 0] > 0).any()
    assert torch.equal(fp8.rounded(torch.zeros(2, 3)), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("passes", "logits_differ", "zero_shot_differs"),
    [((), False, False), (("backward",), True, False), (("second forward",), True, False),
     (("first forward",), True, True)],
)  # fmt: skip
def test_only_the_passes_that_are_named_are_rounded(
    passes: tuple[str, ...], logits_differ: bool, zero_shot_differs: bool
) -> None:
    clf = testing.small_classifier("vit")
    assert clf.encoder.fused
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    own = FusedTransformer.forward, FusedTransformer.backward
    exact = ramen.create("ramen", clf, lr=0.1, beta=1.0).predict(images)
    with fp8.rounded_passes(passes):
        found = ramen.create("ramen", clf, lr=0.1, beta=1.0).predict(images)
    assert (FusedTransformer.forward, FusedTransformer.backward) == own
    assert torch.equal(found.zero_shot_logits, exact.zero_shot_logits) is not zero_shot_differs
    assert torch.equal(found.logits, exact.logits) is not logits_differ
    both = torch.stack([found.zero_shot_logits.flatten(), exact.zero_shot_logits.flatten()])
    assert both.corrcoef()[0, 1] > 0.95  # rounded, not spoiled
