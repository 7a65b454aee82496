"""The reported numbers: some copied by hand, all of them against a file of facts."""

import json
import math

import pytest

from ramen.experiments import paper
from ramen.experiments.paper import Value, beside, differs, tolerance, why_not_comparable
from tests.fakes.published_results import published_result
from tests.helpers.shared_files import PAPER_FACTS

DATA = {
    "CIFAR-10-C": "cifar10c",
    "CIFAR-100-C": "cifar100c",
    "ImageNet-C": "imagenetc5k",
    "DomainNet": "domainnet",
}
NAMES = {title: name for name, title in paper.TITLES.items()}


def number(value: Value) -> tuple[float, float | None]:
    return value.mean, value.deviation


def average(data: str, model: str, protocol: str, method: str) -> Value:
    return paper.reported(data, model, protocol, method)["average"]


def test_spot_checks_of_the_tables() -> None:
    ramen = paper.reported("cifar10c", "ViT-B-32/openai", "mixed", "ramen")
    assert number(ramen["average"]) == (72.7, 0.1)
    assert number(ramen["gaussian_noise"]) == (61.0, 0.4)
    assert number(ramen["jpeg_compression"]) == (67.5, 0.2)
    assert list(ramen)[4] == "defocus_blur"
    assert paper.reported("domainnet", "ViT-B-32/openai", "mixed", "note")["quickdraw"].mean == 16.4
    assert number(average("imagenetc5k", "ViT-L-14/openai", "mixed", "clip")) == (39.6, None)
    rn101 = average("cifar100c", "RN101/openai", "mixed", "watt")
    assert rn101.mean == 28.2
    assert "hyper-parameters" in rn101.note
    assert number(average("cifar100c", "ViT-B-16/openai", "mixed", "entmin")) == (40.11, 0.07)


def test_spot_checks_of_the_figures() -> None:
    assert number(average("cifar100c", "ViT-B-16/openai", "single", "ramen")) == (46.04, 0.08)
    bars = paper.values("bars", "cifar100c", method="watt", protocol="single")
    assert number(bars["average"]) == (47.87, 0.04)
    assert number(paper.curve("imagenetc5k", "beta")[10]) == (45.70, 0.02)
    assert number(paper.curve("domainnet", "lr", "entmin")[0.02]) == (55.51, 0.03)
    assert number(paper.curve("cifar100c", "batch")[1]) == (46.18, 0.05)
    assert number(paper.values("ablation", "cifar100c", protocol="mixed")["w/o PB"]) == (43.22, 0.04)
    assert number(paper.values("weights", "cifar100c")["none"]) == (43.9, 0.1)
    assert paper.values("composition", "domainnet", method="quickdraw")["quickdraw"].mean == 70.9


def test_what_the_paper_does_not_report() -> None:
    assert paper.reported("cifar10c", "ViT-B-16/openai", "mixed", "ramen") == {}
    assert paper.reported("cifar10c", "ViT-B-32/laion2b_s34b_b79k", "mixed", "ramen") == {}
    assert paper.reported("cifar10c", "tiny", "mixed", "ramen") == {}
    assert paper.reported("imagenetc", "ViT-L-14/openai", "mixed", "ramen") == {}
    assert paper.reported("cifar10c", "ViT-B-32/openai", "continual", "ramen") == {}
    assert paper.reported("cifar100c", "RN101/openai", "single", "ramen") == {}
    known = [paper.reported("cifar10c", "ViT-B-32/openai", kind, "clip") for kind in ("single", "mixed")]
    assert known[0] == known[1] != {}  # zero-shot answers do not depend on the stream
    assert paper.curve("cifar10c", "batch") == {}
    assert paper.curve("cifar10c", "capacity", "entmin") == {}
    assert paper.values("ablation", "cifar10c", protocol="mixed") == {}
    assert "pacs" not in paper.SETTINGS


def test_contradictions_carry_a_note() -> None:
    note, tent = (
        paper.values("bars", "domainnet", method=name, protocol="mixed") for name in ("note", "tent")
    )
    assert "56.5" in note["average"].note
    assert tent["average"].note == ""
    assert "1 to 50" in paper.curve("cifar100c", "topk")[5].note
    assert paper.curve("domainnet", "topk")[5].note == ""
    assert "irrelevant" in paper.curve("imagenetc5k", "beta")[10].note
    assert "21.7" in paper.values("same_domain", "domainnet")[""].note
    bins = list(paper.values("similarity", "cifar100c").values())
    assert sum(one.mean for one in bins) / len(bins) == pytest.approx(11.86)
    assert "11.9" in bins[0].note


def test_averages_are_those_of_the_rows() -> None:
    """The printed average is the mean of the printed domains, up to rounding."""
    checked = 0
    models = [(name, paper.SETTINGS[name].model) for name in DATA.values()]
    for data, model in [*models, ("cifar100c", "RN101")]:
        for method in paper.TITLES:
            found = paper.reported(data, f"{model}/openai", "mixed", method)
            whole = found.pop("average", None)
            if found:
                mean = sum(value.mean for value in found.values()) / len(found)
                assert whole.mean == pytest.approx(mean, abs=0.1), (data, method)
                checked += 1
    assert checked >= 5 * 10  # ten methods at least, on each of the five


def test_compositions_are_shares() -> None:
    for data in DATA.values():
        for domain in paper.SETTINGS[data].domains:
            row = paper.values("composition", data, method=domain)
            assert tuple(row) == paper.SETTINGS[data].domains
            assert sum(value.mean for value in row.values()) == pytest.approx(100, abs=4)  # each to about 0.4


@pytest.fixture(scope="module")
def facts():
    return json.loads((PAPER_FACTS.path / "paper_tables.json").read_text())


@pytest.mark.paper_facts
def test_tables_equal_the_facts(facts) -> None:
    compared = 0
    for setting, rows in facts["mixed"].items():
        title, model = setting.split("/")
        for name, row in rows.items():
            found = paper.reported(DATA[title], f"{model}/openai", "mixed", NAMES[name])
            assert number(found.pop("average")) == (row["avg"], row["avg_sd"])
            assert {domain: value.mean for domain, value in found.items()} == row["per_domain"]
            assert {domain: value.deviation for domain, value in found.items()} == row["sd"]
            compared += 1
    assert compared == 5 * 12
    weights = facts["weighting_ablation_cifar100c"]
    for name, (entropy, similarity) in {
        "none": (0, 0),
        "similarity": (0, 1),
        "entropy": (1, 0),
        "both": (1, 1),
    }.items():
        value = paper.values("weights", "cifar100c")[name]
        assert number(value) == tuple(weights[f"Ramen ent={entropy} sim={similarity}"])


@pytest.mark.paper_facts
def test_figures_equal_the_facts(facts) -> None:
    figures = facts["figures_digitised_from_vector_pdf"]
    for title, rows in figures["single_vs_mixed"].items():
        for name, bars in rows.items():
            for kind, bar in bars.items():
                found = paper.values("bars", DATA[title], method=NAMES[name], protocol=kind.split("-")[0])
                assert number(found["average"]) == (bar["mean"], bar["sd"])
    for title, sweeps in figures["hp_sweep"].items():
        for symbol, parameter in {"K": "capacity", "k": "topk", "beta": "beta"}.items():
            check_curve(paper.curve(DATA[title], parameter), sweeps[symbol])
    for title, points in figures["lr_sweep"].items():
        for name in ("EntMin", "Ramen"):
            curve = paper.curve(DATA[title], "lr", NAMES[name])
            check_curve(curve, {value: point[name] for value, point in points.items()})
    check_curve(paper.curve("cifar100c", "batch"), figures["batch_size_cifar100c"])
    for kind, rows in figures["ablation_cifar100c"].items():
        found = paper.values("ablation", "cifar100c", protocol=kind.split("-")[0])
        assert {label: number(value) for label, value in found.items()} == {
            label: (row["mean"], row["sd"]) for label, row in rows.items()
        }
    for title, matrix in figures["support_domain_matrix_pct"].items():
        for domain, shares in zip(matrix["order"], matrix["matrix"], strict=True):
            row = paper.values("composition", DATA[title], method=domain)
            assert [value.mean for value in row.values()] == shares
            assert list(row) == matrix["order"]
        same = paper.values("same_domain", DATA[title])[""]
        assert same.mean == facts["support_same_domain_pct"][title]


def check_curve(curve: dict[float, Value], facts: dict[str, dict[str, float]]) -> None:
    assert {value: number(point) for value, point in curve.items()} == {
        float(value): (point["mean"], point["sd"]) for value, point in facts.items()
    }


@pytest.mark.paper_facts
def test_costs_equal_the_facts(facts) -> None:
    images = paper.SETTINGS["cifar100c"].images
    for name, row in facts["time_cifar100c_vitb16_v100"].items():
        seconds = paper.seconds(NAMES.get(name, paper.WITHOUT_CACHE))
        assert seconds == row["seconds"]
        assert 1000 * seconds / images == pytest.approx(row["ms_per_image"], abs=1e-3)
    memory = facts["memory_cifar100c_vitb16"]
    assert [mib.mean for mib in paper.values("mib", "cifar100c").values()] == [
        row["MiB"] for row in memory.values()
    ]
    bins = [value.mean for value in paper.values("similarity", "cifar100c").values()]
    assert bins == facts["similarity_bins_same_domain_pct_cifar100c"]


# -- what may be compared --


@pytest.mark.parametrize(
    ("deviation", "seeds", "reported", "allowed"),
    [
        (0.3, 9, Value(0, 0.2), 2 * math.sqrt(0.1**2 + 0.2**2)),
        (0.4, 4, Value(0, None), 0.4),  # nothing printed: the measured one alone
        (None, 1, Value(0, 0.3), 2 * 0.3 * math.sqrt(2)),  # one seed: the printed one twice
        (None, 1, Value(0, None), 0.15),
        (0.01, 3, Value(0, 0.0), 0.15),
    ],
)
def test_tolerance_by_hand_and_marks_on_both_sides_of_it(deviation, seeds, reported, allowed) -> None:
    assert tolerance(deviation, seeds, reported) == pytest.approx(allowed)
    for sign in (1, -1):
        inside = Value(70.0 + sign * (allowed - 1e-6), reported.deviation)
        outside = Value(70.0 + sign * (allowed + 1e-6), reported.deviation)
        assert not differs(70.0, deviation, seeds, inside)
        assert differs(70.0, deviation, seeds, outside)


def reason_of(**changes) -> str | None:
    values, reason = beside(published_result(**changes))
    assert bool(values) == (reason is None)
    return reason


@pytest.mark.parametrize("method", ["clip", "ensemble", "tent", "sar", "mint", "watt", "ramen"])
@pytest.mark.parametrize("data", ["cifar10c", "cifar100c", "imagenetc5k", "domainnet"])
def test_the_papers_own_experiments_are_comparable(method, data) -> None:
    assert reason_of(method=method, data=data) is None


def test_what_else_is_comparable() -> None:
    assert reason_of(method="tent", protocol="single", average=67.0) is None
    assert reason_of(method="ramen", data="cifar100c", model="RN101/openai") is None
    assert reason_of(overrides={"topk": 50, "beta": 5.0}) is None  # the paper's own values


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "ViT-B-16/openai", "average": 50.0}, "ViT-B-32/openai on CIFAR-10-C, not ViT-B-16/openai"),
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
        ({"method": "entmin", "protocol": "single", "average": 60.0}, "does not report EntMin"),
    ],
)
def test_what_is_another_experiment_is_not_compared(changes, reason) -> None:
    assert reason in reason_of(**changes)


def test_parts_of_the_data_are_not_compared() -> None:
    fewer = published_result()
    del fewer["scores"]["domains"]["fog"]
    assert "14 domains that are not the paper's 15" in beside(fewer)[1]
    short = published_result()
    short["scores"]["images"]["fog"] = 200
    assert "140,200 images instead of 150,000" in beside(short)[1]
    other = published_result()
    other["experiment"]["data"] = "imagenetc"  # all 50,000: the paper has the listed 5,000
    assert "does not use imagenetc" in beside(other)[1]


def test_what_a_sweep_varies_may_differ() -> None:
    one = published_result(overrides={"topk": 7}, batch=10)
    assert "batches" in why_not_comparable(one)
    assert "topk" in why_not_comparable(one, frozenset({"batch"}))
    assert why_not_comparable(one, frozenset({"batch", "topk"})) is None
