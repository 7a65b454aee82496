"""The reported numbers: some copied by hand, all of them against a file of facts."""

import json

import pytest

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.paper import Value
from tests.helpers.shared_files import PAPER_FACTS

DATA = {
    "CIFAR-10-C": "cifar10c",
    "CIFAR-100-C": "cifar100c",
    "ImageNet-C": "imagenetc5k",
    "DomainNet": "domainnet",
}
NAMES = {title: name for name, title in paper.TITLES.items()}


def test_spot_checks_of_the_tables() -> None:
    ramen = paper.reported("cifar10c", "ViT-B-32/openai", "mixed", "ramen")
    assert ramen.average == Value(72.7, 0.1)
    assert ramen.domains["gaussian_noise"] == Value(61.0, 0.4)
    assert ramen.domains["jpeg_compression"] == Value(67.5, 0.2)
    assert list(ramen.domains)[3] == "defocus_blur"
    assert paper.reported("domainnet", "ViT-B-32/openai", "mixed", "note").domains["quickdraw"].mean == 16.4
    assert paper.reported("imagenetc5k", "ViT-L-14/openai", "mixed", "clip").average == Value(39.6, None)
    rn101 = paper.reported("cifar100c", "RN101/openai", "mixed", "watt")
    assert rn101.average.mean == 28.2
    assert "hyper-parameters" in rn101.note
    assert paper.reported("cifar100c", "ViT-B-16/openai", "mixed", "entmin").average == Value(40.11, 0.07)


def test_spot_checks_of_the_figures() -> None:
    assert paper.reported("cifar100c", "ViT-B-16/openai", "single", "ramen").average == Value(46.04, 0.08)
    assert paper.reported_bars("cifar100c")["watt"]["single"] == Value(47.87, 0.04)
    assert paper.reported_sweep("imagenetc5k", "beta").points[10] == Value(45.70, 0.02)
    assert paper.reported_sweep("domainnet", "lr", "entmin").points[0.02] == Value(55.51, 0.03)
    assert paper.reported_sweep("cifar100c", "batch").points[1] == Value(46.18, 0.05)
    assert paper.reported_ablation("cifar100c", "mixed")["w/o PB"] == Value(43.22, 0.04)
    assert paper.reported_weights("cifar100c")["none"] == Value(43.9, 0.1)
    assert paper.reported_composition("domainnet").matrix[3][3] == 70.9


def test_costs() -> None:
    times = paper.reported_times()
    assert times["watt"].seconds == 18 * 3600 + 54 * 60 + 50
    assert times["ramen"].ms_an_image == pytest.approx(5.653, abs=1e-3)
    assert times[paper.WITHOUT_CACHE].seconds / times["ramen"].seconds == pytest.approx(491, abs=1)
    assert paper.reported_memory()["split"].mib == 8724
    assert paper.reported_peak("imagenetc5k") == 30588


def test_what_the_paper_does_not_report() -> None:
    assert paper.reported("cifar10c", "ViT-B-16/openai", "mixed", "ramen") is None
    assert paper.reported("cifar10c", "ViT-B-32/laion2b_s34b_b79k", "mixed", "ramen") is None
    assert paper.reported("cifar10c", "tiny", "mixed", "ramen") is None
    assert paper.reported("imagenetc", "ViT-L-14/openai", "mixed", "ramen") is None
    assert paper.reported("cifar10c", "ViT-B-32/openai", "continual", "ramen") is None
    assert paper.reported("cifar100c", "RN101/openai", "single", "ramen") is None
    assert paper.reported_sweep("cifar10c", "batch") is None
    assert paper.reported_sweep("cifar10c", "capacity", "entmin") is None
    assert paper.reported_ablation("cifar10c", "mixed") == {}
    assert paper.setting("pacs") is None


def test_zero_shot_answers_do_not_depend_on_the_stream() -> None:
    single, mixed = (
        paper.reported("cifar10c", "ViT-B-32/openai", protocol, "clip") for protocol in ("single", "mixed")
    )
    assert single == mixed


def test_contradictions_carry_a_note() -> None:
    assert "56.5" in paper.bars_note("domainnet", "note")
    assert paper.bars_note("domainnet", "tent") is None
    assert "1 to 50" in paper.reported_sweep("cifar100c", "topk").note
    assert paper.reported_sweep("domainnet", "topk").note is None
    assert "irrelevant" in paper.reported_sweep("imagenetc5k", "beta").note
    assert "21.7" in paper.reported_composition("domainnet").note
    bins, note = paper.reported_similarity_bins("cifar100c")
    assert sum(bins) / len(bins) == pytest.approx(11.86)
    assert "11.9" in note


def test_averages_are_those_of_the_rows() -> None:
    """The printed average is the mean of the printed domains, up to rounding."""
    checked = 0
    for data, model in [(name, paper.setting(name).model) for name in DATA.values()] + [
        ("cifar100c", "RN101")
    ]:
        for method in paper.TITLES:
            found = paper.reported(data, f"{model}/openai", "mixed", method)
            if found is not None and found.domains:
                mean = sum(value.mean for value in found.domains.values()) / len(found.domains)
                assert found.average.mean == pytest.approx(mean, abs=0.1), (data, method)
                checked += 1
    assert checked >= 5 * 10  # ten methods at least, on each of the five


def test_compositions_are_shares() -> None:
    for data in DATA.values():
        found = paper.reported_composition(data)
        for row in found.matrix:
            assert sum(row) == pytest.approx(100, abs=4)  # each is decoded to about 0.4
        assert len(found.matrix) == len(found.domains)


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
            assert {domain: value.mean for domain, value in found.domains.items()} == row["per_domain"]
            assert {domain: value.deviation for domain, value in found.domains.items()} == row["sd"]
            assert found.average == Value(row["avg"], row["avg_sd"])
            compared += 1
    assert compared == 5 * 12
    weights = facts["weighting_ablation_cifar100c"]
    for name, (entropy, similarity) in {
        "none": (0, 0),
        "similarity": (0, 1),
        "entropy": (1, 0),
        "both": (1, 1),
    }.items():
        value = paper.reported_weights("cifar100c")[name]
        assert value == Value(*weights[f"Ramen ent={entropy} sim={similarity}"])


@pytest.mark.paper_facts
def test_figures_equal_the_facts(facts) -> None:
    figures = facts["figures_digitised_from_vector_pdf"]
    for title, rows in figures["single_vs_mixed"].items():
        for name, bars in rows.items():
            found = paper.reported_bars(DATA[title])[NAMES[name]]
            assert found == {kind.split("-")[0]: Value(bar["mean"], bar["sd"]) for kind, bar in bars.items()}
    for title, sweeps in figures["hp_sweep"].items():
        for symbol, parameter in {"K": "capacity", "k": "topk", "beta": "beta"}.items():
            check_curve(paper.reported_sweep(DATA[title], parameter), sweeps[symbol])
    for title, points in figures["lr_sweep"].items():
        for name in ("EntMin", "Ramen"):
            curve = paper.reported_sweep(DATA[title], "lr", NAMES[name])
            check_curve(curve, {value: point[name] for value, point in points.items()})
    check_curve(paper.reported_sweep("cifar100c", "batch"), figures["batch_size_cifar100c"])
    for kind, rows in figures["ablation_cifar100c"].items():
        found = paper.reported_ablation("cifar100c", kind.split("-")[0])
        assert found == {label: Value(row["mean"], row["sd"]) for label, row in rows.items()}
    for title, matrix in figures["support_domain_matrix_pct"].items():
        found = paper.reported_composition(DATA[title])
        assert [list(row) for row in found.matrix] == matrix["matrix"]
        assert list(found.domains) == matrix["order"]
        assert found.same_domain == facts["support_same_domain_pct"][title]


def check_curve(curve: paper.Curve, facts: dict[str, dict[str, float]]) -> None:
    assert curve.points == {float(value): Value(p["mean"], p["sd"]) for value, p in facts.items()}


@pytest.mark.paper_facts
def test_costs_equal_the_facts(facts) -> None:
    for name, row in facts["time_cifar100c_vitb16_v100"].items():
        found = paper.reported_times()[NAMES.get(name, paper.WITHOUT_CACHE)]
        assert found.seconds == row["seconds"]
        assert found.ms_an_image == pytest.approx(row["ms_per_image"], abs=1e-3)
    memory = facts["memory_cifar100c_vitb16"]
    assert [cost.mib for cost in paper.reported_memory().values()] == [row["MiB"] for row in memory.values()]
    assert (
        list(paper.reported_similarity_bins("cifar100c")[0])
        == (facts["similarity_bins_same_domain_pct_cifar100c"])
    )
