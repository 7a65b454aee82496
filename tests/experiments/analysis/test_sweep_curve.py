"""Curves made of results, with the paper's points."""

import pytest

from ramen.experiments.analysis.sweep_curve import Sweep
from ramen.experiments.plan.variations import VARIANTS
from tests.fakes.published_results import published_result
from tests.fakes.results import sample_result


def test_a_curve_beside_the_papers() -> None:
    results = [
        published_result(data="cifar100c", average=40.0 + k + seed, seed=seed, overrides={"topk": k})
        for k in (10, 1, 5, 7)
        for seed in (0, 1)
    ]
    results += [published_result("ensemble", data="cifar100c"), published_result("tent", data="cifar100c")]
    sweep = Sweep.from_results(results, "topk")
    assert (sweep.parameter, sweep.method, sweep.data, sweep.model, sweep.protocol) == (
        ("topk", "ramen", "cifar100c", "ViT-B-16/openai", "mixed")
    )
    assert [(point.value, point.label) for point in sweep.points] == [
        (1, "1"),
        (5, "5"),
        (7, "7"),
        (10, "10"),
    ]
    assert [point.mean for point in sweep.points] == [41.5, 45.5, 47.5, 50.5]
    assert [point.seeds for point in sweep.points] == [2] * 4
    assert [point.reported for point in sweep.points] == [45.26, 46.18, None, 45.93]
    assert list(sweep.lines) == ["Ensemble"]
    assert "1 to 50 is meant" in sweep.note


@pytest.mark.parametrize("protocol", ["mixed", "single"])
def test_ablation_beside_the_papers(protocol) -> None:
    results = [
        published_result(
            data="cifar100c", protocol=protocol, average=40.0, overrides=dict(settings), label=label
        )
        for label, settings in VARIANTS["ablation"].items()
    ]
    results[-1]["experiment"]["label"] = None
    sweep = Sweep.from_results(results, "ablation")
    assert [point.label for point in sweep.points] == ["w/o PB & DC", "w/o DC", "w/o PB", "Ramen"]
    expected = {"mixed": [38.56, 39.13, 43.22, 46.13], "single": [42.42, 43.96, 43.02, 46.04]}
    assert [point.reported for point in sweep.points] == expected[protocol]


def test_weights_and_batch_beside_the_papers() -> None:
    weights = [
        published_result(data="cifar100c", average=40.0, overrides=dict(settings))
        for settings in VARIANTS["weights"].values()
    ]
    sweep = Sweep.from_results(weights, "weights")
    assert [(point.label, point.reported) for point in sweep.points] == (
        [("none", 43.9), ("similarity", 45.2), ("entropy", 45.2), ("both", 46.1)]
    )
    batches = [published_result(data="cifar100c", average=46.0, batch=batch) for batch in (10, 1)]
    sweep = Sweep.from_results(batches, "batch")
    assert [(point.value, point.reported) for point in sweep.points] == [(1, 46.18), (10, 46.17)]


def test_another_experiment_has_no_curve_of_the_papers() -> None:
    results = [
        published_result(data="cifar100c", average=40.0, overrides={"topk": k, "lr": 0.5}) for k in (1, 5)
    ]
    sweep = Sweep.from_results(results, "topk")
    assert [point.reported for point in sweep.points] == [None, None]
    assert sweep.note == "Without the paper's numbers: lr=0.5 instead of 0.01."
    other = [
        published_result(data="cifar100c", model="RN101/openai", average=20.0, overrides={"topk": k})
        for k in (1, 5)
    ]
    assert "RN101" in Sweep.from_results(other, "topk").note


def test_results_that_make_no_curve() -> None:
    mixed = [
        sample_result(parameters={"topk": 1, "lr": 0.1}),
        sample_result(parameters={"topk": 2, "lr": 0.2}),
    ]
    with pytest.raises(ValueError, match=r"differ in topk alone, got lr 0\.1 and 0\.2"):
        Sweep.from_results(mixed, "topk")
    with pytest.raises(ValueError, match="of one stream and model, got another for Ensemble"):
        Sweep.from_results([sample_result(), sample_result("ensemble", protocol="single")], "topk")
    with pytest.raises(ValueError, match="runs of 'ramen', got none"):
        Sweep.from_results([sample_result("tent")], "lr")
    with pytest.raises(ValueError, match="has no parameter 'nothing'"):
        Sweep.from_results([sample_result()], "nothing")
