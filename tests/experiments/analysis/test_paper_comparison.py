"""Which results are compared with the paper's, and when a difference is marked."""

import math

import pytest

from ramen.experiments.analysis.grouping import group
from ramen.experiments.analysis.paper import Value
from ramen.experiments.analysis.paper_comparison import differs, paper_row, tolerance, why_not_comparable
from ramen.experiments.analysis.spread import Spread
from tests.fakes.published_results import published_result


@pytest.mark.parametrize(
    ("measured", "reported", "allowed"),
    [
        (Spread(70.0, 0.3, 9), Value(0, 0.2), 2 * math.sqrt(0.1**2 + 0.2**2)),
        (Spread(70.0, 0.4, 4), Value(0, None), 0.4),  # nothing printed: the measured one alone
        (Spread(70.0, None, 1), Value(0, 0.3), 2 * 0.3 * math.sqrt(2)),  # one seed: the printed one twice
        (Spread(70.0, None, 1), Value(0, None), 0.15),
        (Spread(70.0, 0.01, 3), Value(0, 0.0), 0.15),
    ],
)
def test_tolerance_by_hand_and_marks_on_both_sides_of_it(measured, reported, allowed) -> None:
    assert tolerance(measured, reported) == pytest.approx(allowed)
    for sign in (1, -1):
        inside = Value(measured.mean + sign * (allowed - 1e-6), reported.deviation)
        outside = Value(measured.mean + sign * (allowed + 1e-6), reported.deviation)
        assert not differs(measured, inside)
        assert differs(measured, outside)


def reason_of(**changes) -> str | None:
    (one,) = group([published_result(**changes)])
    beside = paper_row(one)
    assert (beside.reported is None) == (beside.reason is not None)
    return beside.reason


@pytest.mark.parametrize("method", ["clip", "ensemble", "tent", "sar", "mint", "watt", "ramen"])
@pytest.mark.parametrize("data", ["cifar10c", "cifar100c", "imagenetc5k", "domainnet"])
def test_the_papers_own_experiments_are_comparable(method, data) -> None:
    assert reason_of(method=method, data=data) is None


def test_single_domains_and_the_other_backbone_are_comparable() -> None:
    assert reason_of(method="tent", protocol="single", average=67.0) is None
    assert reason_of(method="ramen", data="cifar100c", model="RN101/openai") is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"model": "ViT-B-16/openai", "average": 50.0},
            "the paper uses ViT-B-32/openai on CIFAR-10-C, not ViT-B-16/openai",
        ),
        ({"model": "ViT-B-32/laion2b_s34b_b79k", "average": 50.0}, "not ViT-B-32/laion2b"),
        ({"model": "RN101/openai", "average": 50.0}, "not RN101/openai"),
        ({"protocol": "continual", "average": 50.0}, "the paper has no continual stream"),
        ({"protocol_parameters": {"limit": 1000}}, "not the whole stream: limit=1000"),
        ({"data_options": {"severity": 3}}, "severity 3 instead of 5"),
        ({"templates": "single"}, "templates single instead of the paper's seven"),
        ({"batch": 50}, "batches of 50 instead of 100"),
        ({"overrides": {"topk": 7}}, "topk=7 instead of 50"),
        ({"overrides": {"visibility": "causal"}}, "visibility=causal instead of batch"),
        ({"label": "w/o PB"}, "it is a variant"),
        (
            {"method": "entmin", "protocol": "single", "average": 60.0},
            "the paper does not report EntMin for this setting",
        ),
    ],
)
def test_what_is_another_experiment_is_not_compared(changes, reason) -> None:
    assert reason in reason_of(**changes)


def test_what_was_set_to_the_papers_own_value_is_no_difference() -> None:
    assert reason_of(overrides={"topk": 50, "beta": 5.0}) is None


def test_parts_of_the_data_are_not_compared() -> None:
    fewer = published_result()
    del fewer["scores"]["domains"]["fog"]
    assert "14 domains that are not the paper's 15" in paper_row(group([fewer])[0]).reason
    short = published_result()
    short["scores"]["images"]["fog"] = 200
    assert "140,200 images instead of 150,000" in paper_row(group([short])[0]).reason
    other = published_result()
    other["experiment"]["data"] = "imagenetc"  # all 50,000: the paper has the listed 5,000
    assert "does not use imagenetc" in paper_row(group([other])[0]).reason


def test_what_a_sweep_varies_may_differ() -> None:
    (one,) = group([published_result(overrides={"topk": 7}, batch=10)])
    assert "batches" in why_not_comparable(one)
    assert "topk" in why_not_comparable(one, frozenset({"batch"}))
    assert why_not_comparable(one, frozenset({"batch", "topk"})) is None
