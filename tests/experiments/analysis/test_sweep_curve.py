"""What is varied, and the curve that results make."""

import pytest

from ramen.experiments.analysis.sweep_curve import Sweep
from ramen.experiments.plan.experiment import plan
from ramen.experiments.plan.variations import NAMED, experiments, parse_variation
from ramen.methods._registry import describe
from tests.fakes.published_results import published_result
from tests.fakes.results import sample_result


def bases(data="cifar100c", method="ramen", seeds=(0,), **rest):
    root = None if data == "tiny" else "somewhere"
    return plan([method], data=data, root=root, seeds=seeds, **rest)


def values(text: str, **rest) -> list:
    return list(parse_variation(text, bases(**rest)[0]).values)


def test_values_as_given() -> None:
    assert values("topk=1, 2,5") == [1, 2, 5]
    assert values("visibility=batch,causal") == ["batch", "causal"]
    assert values("balance=true,false") == [True, False]
    beta = values("beta=0,5,5.0")
    assert beta == [0.0, 5.0]
    assert all(type(value) is float for value in beta)
    assert values("batch=1,100") == [1, 100]


def test_the_papers_grids() -> None:
    assert values("capacity") == [50, 100, 150, 300, 450, 600, 750, 1000, 1500]
    assert values("capacity", data="domainnet") == [20, 40, 60, 120, 180, 240, 300, 400, 600]
    assert values("topk") == [1, 2, 5, 10, 20, 50]
    assert values("topk", data="cifar10c") == [5, 10, 20, 50, 100, 200]
    assert values("beta", data="imagenetc5k") == list(range(11))
    assert values("lr") == [0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02]
    assert values("batch") == [1, 2, 5, 10, 20, 50, 100]


def test_grids_elsewhere_scale_with_the_preset() -> None:
    assert values("capacity", data="tiny") == [50, 100, 150, 300, 450, 600, 750, 1000, 1500]
    assert values("capacity", data="tiny", settings=["capacity=30", "topk=4"]) == [
        4,
        6,
        12,
        18,
        24,
        30,
        40,
        60,
    ]
    assert values("topk", data="tiny", settings=["capacity=15"]) == [1, 2, 3, 5, 10]  # 3 is the preset's
    assert values("lr", data="tiny") == [0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04]
    assert values("lr", data="tiny", method="tent")[2] == 0.001
    assert "0.5 to 2 times 0.02" in parse_variation("lr", bases("tiny")[0]).origin


@pytest.mark.parametrize(
    ("text", "method", "message"),
    [
        ("topkk", "ramen", "did you mean 'topk'"),
        ("capacity", "tent", "method 'tent' has no parameter 'capacity'"),
        ("ablation", "tent", "variants of ramen"),
        ("codec", "ramen", "--vary codec needs values"),
        ("topk=5", "ramen", "at least two values"),
        ("topk=", "ramen", "at least two values"),
        ("seed=1,2", "ramen", "no parameter 'seed'"),
        ("ablation=1,2", "ramen", "no parameter 'ablation'"),
    ],
)
def test_what_cannot_be_varied(text, method, message) -> None:
    with pytest.raises(ValueError, match=message):
        parse_variation(text, bases(method=method)[0])


def test_named_variants_are_parameters_of_ramen() -> None:
    defaults = describe("ramen").defaults
    for variants in NAMED.values():
        assert {name for settings in variants.values() for name in settings} <= set(defaults)
    assert NAMED["ablation"]["w/o PB"] == {"balance": False}
    assert NAMED["ablation"]["w/o DC"] == {"consistency": False}


def test_the_point_of_the_preset_is_the_plain_experiment() -> None:
    """So that its result is shared with other sweeps and with ``ramen run``."""
    own = bases(seeds=(0, 1))
    topk = experiments(parse_variation("topk", own[0]), own)
    ablation = experiments(parse_variation("ablation", own[0]), own)
    placement = experiments(parse_variation("placement", own[0]), own)
    batch = experiments(parse_variation("batch", own[0]), own)
    for points in (topk, ablation, placement, batch):
        assert [one for one in points if one in own] == own
        assert len({one.key() for one in points}) == len(points)
    assert [(one.overrides, one.seed) for one in topk[:3]] == [
        ({"topk": 1}, 0),
        ({"topk": 1}, 1),
        ({"topk": 2}, 0),
    ]
    assert topk[0].parameters == {**own[0].parameters, "topk": 1}
    assert {one.label for one in ablation} == {None, "w/o PB", "w/o DC", "w/o PB & DC"}
    assert [one.batch for one in batch[::2]] == [1, 2, 5, 10, 20, 50, 100]
    assert {one.label for one in (*topk, *placement, *batch)} == {None}


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
        for label, settings in NAMED["ablation"].items()
    ]
    results[-1]["experiment"]["label"] = None
    sweep = Sweep.from_results(results, "ablation")
    assert [point.label for point in sweep.points] == ["w/o PB & DC", "w/o DC", "w/o PB", "Ramen"]
    expected = {"mixed": [38.56, 39.13, 43.22, 46.13], "single": [42.42, 43.96, 43.02, 46.04]}
    assert [point.reported for point in sweep.points] == expected[protocol]


def test_weights_and_batch_beside_the_papers() -> None:
    weights = [
        published_result(data="cifar100c", average=40.0, overrides=dict(settings))
        for settings in NAMED["weights"].values()
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
