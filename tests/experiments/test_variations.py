"""What a sweep varies, and the experiments that follow."""

from ramen.experiments.experiment import plan
from ramen.experiments.variations import VARIANTS, experiments, parse_variation
from ramen.methods._registry import describe


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
    assert values("topk", data="tiny", settings=["capacity=15"]) == [1, 2, 5, 10]
    assert values("topk", data="tiny", settings=["capacity=15", "topk=3"]) == [1, 2, 3, 5, 10]
    # Ramen chooses its own: around the paper's
    assert values("lr", data="tiny") == [0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02]
    assert values("lr", data="tiny", settings=["lr=0.02"])[::3] == [0.01, 0.025, 0.04]
    assert values("beta=0,5", data="tiny") == [0.0, 5.0]
    assert values("lr", data="tiny", method="tent")[2] == 0.001
    assert "0.5 to 2 times 0.01" in parse_variation("lr", bases("tiny")[0]).origin


def test_named_variants_are_parameters_of_ramen() -> None:
    defaults = describe("ramen").defaults
    for variants in VARIANTS.values():
        assert {name for settings in variants.values() for name in settings} <= set(defaults)
    assert VARIANTS["ablation"]["w/o PB"] == {"balance": False}
    assert VARIANTS["ablation"]["w/o DC"] == {"consistency": False}


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
