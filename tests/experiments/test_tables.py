"""The tables of results, and sweeps: the numbers that they hold."""

import io

import pytest
from rich.console import Console

from ramen.experiments.render import print_tables, width
from ramen.experiments.results import Rows, all_rows, groups_of
from ramen.experiments.tables import (
    MAKERS,
    accuracy_table,
    averages_table,
    changes_table,
    cost_table,
    memory_table,
    ranking_table,
    sweep_of,
    time_table,
)
from ramen.experiments.variations import VARIANTS
from tests.fakes.published_results import published_result
from tests.fakes.results import sample_result


def rows_of(*results):
    (rows,) = all_rows(results)
    return rows


def texts(table, row: int) -> list[str]:
    return [cell.text for cell in table.cells()[row]]


def reported(curve):
    return [None if point.printed is None else point.printed.mean for point in curve.points]


def sweep(results, parameter):
    return sweep_of(Rows(groups_of(results)), parameter)


def test_the_papers_shape_with_its_numbers_below() -> None:
    results = [published_result("ramen", seed=seed) for seed in (0, 1, 2)]
    results += [published_result("tent", offset=5.0), published_result("clip")]
    table = accuracy_table(rows_of(*results))
    heads = "Method Gauss Shot Impul Defoc Glass Motion Zoom Snow Frost Fog Brit Contr Elast Pixel JPEG Avg."
    assert " ".join(column.head for column in table.columns) == heads
    assert [row[0].text for row in table.cells()] == [
        "CLIP",
        "  paper",
        "Tent",
        "  paper",
        "Ramen",
        "  paper",
    ]
    ramen = "61.0 63.3 56.0 77.2 64.1 77.2 78.9 80.9 80.3 78.0 88.1 79.8 72.0 65.5 67.5 72.7"
    assert texts(table, 5)[1:] == ramen.split()
    assert texts(table, 4)[1:] == ramen.split()  # measured just so
    assert not any(cell.marked for row in (0, 1, 3, 4, 5) for cell in table.cells()[row])
    assert all(cell.marked for cell in table.cells()[2][1:])  # five points beside the paper's
    assert any(
        note.startswith("* differs from the paper's number by more than 2 sqrt") for note in table.notes
    )
    assert width(table, 0) <= 100


def test_best_and_second_best_of_a_column() -> None:
    results = [published_result(name) for name in ("clip", "tent", "ramen")]
    table = accuracy_table(rows_of(*results))
    gauss = {row[0].text: row[1].style for row in table.cells() if row[0].text != "  paper"}
    assert gauss == {"CLIP": "", "Tent": "second", "Ramen": "best"}
    zoom = [row[7].style for row in table.cells()[::2]]
    assert zoom == ["", "second", "best"]
    assert all(not cell.style for cell in accuracy_table(rows_of(published_result())).cells()[0])
    two = averages_table(rows_of(published_result("clip"), published_result("ramen")))
    assert [row[1].style for row in two.cells()] == ["", "best"]  # the other of two is no second best


def test_averages_with_deviations_and_differences() -> None:
    results = [published_result(average=value, seed=seed) for seed, value in enumerate((71.0, 72.0, 73.0))]
    results += [published_result("tent", average=67.0), published_result("entmin", average=70.0)]
    table = averages_table(rows_of(*results))
    rows = [[cell.text for cell in (row[0], row[1], *row[3:])] for row in table.cells()]
    assert rows[0] == ["EntMin", "70.00", "67.12 ± 0.04", "+2.88", "1"]
    assert rows[1] == ["Tent", "67.00", "66.9 ± 0.2", "+0.10", "1"]
    assert rows[2] == ["Ramen", "72.00 ± 1.00", "72.7 ± 0.1", "-0.70", "3"]
    marks = {row[0].text: row[4].marked for row in table.cells()}
    assert marks == {"EntMin": True, "Tent": False, "Ramen": False}  # Ramen: 2 sqrt(1/3 + 0.01) = 1.17
    assert any("EntMin is in no table" in note for note in table.notes)
    record = next(one for one in table.records if one["method"] == "ramen")
    assert record["difference"] == pytest.approx(-0.7)
    assert record["beyond_deviation"] is False
    assert record["deviation"] == pytest.approx(1.0)


def test_every_table_prints_in_forty_columns() -> None:
    groups = rows_of(published_result("tent"), published_result("ramen"))
    console = Console(file=io.StringIO(), width=40, color_system=None)
    print_tables(console, [make(groups) for make in (*MAKERS.values(), cost_table)])
    assert max(map(len, console.file.getvalue().splitlines())) <= 40


def test_changed_answers_over_all_seeds() -> None:
    results = [published_result(seed=seed) for seed in (0, 1)]
    for result, (repaired, broken) in zip(results, ((30, 10), (50, 30)), strict=True):
        result["scores"]["changes"] = {"both_right": 100, "repaired": repaired, "broken": broken}
        result["scores"]["changes"]["both_wrong"] = 100 - repaired - broken
        result["scores"]["refused"] = 2
    table = changes_table(rows_of(*results))
    # by hand: 30 and 50 of 200 are 15 % and 25 %, 10 and 30 are 5 % and 15 %
    shares = ["20.00 ± 7.07", "10.00 ± 7.07", "+10.00 ± 0.00", "2.00"]
    assert texts(table, 0) == ["Ramen", "400", *shares, *texts(table, 0)[6:9], "4"]
    assert texts(table, 0)[7:9] == ["7.50 ± 0.00", "6.00 ± 0.00"]  # calibration errors
    results[0]["scores"]["changes"] |= {"broken": 0}
    results[1]["scores"]["changes"] |= {"broken": 0}
    heads = [column.head for column in changes_table(rows_of(*results)).columns]
    assert "Repaired / broken" not in heads  # nothing broken: no ratio


def test_time_and_the_papers() -> None:
    results = []
    for name, ms in {"clip": 2.0, "ramen": 5.0, "mint": 4.0}.items():
        result = published_result(name, data="cifar100c")
        result["cost"] |= {"ms_an_image": ms, "passes": {"forward": 2, "backward": 1}}
        results.append(result)
    table = time_table(rows_of(*results))
    assert texts(table, 0) == ["CLIP", "2.00", "1.0", "2 / 1", "2.18", "1.0"]
    assert texts(table, 2) == ["Ramen", "5.00", "2.5", "2 / 1", "5.65", "2.6"]  # 848 s of 150,000; 848 / 327
    assert any("V100" in note for note in table.notes)
    elsewhere = time_table(rows_of(published_result("ramen")))
    assert [column.head for column in elsewhere.columns] == ["Method", "ms per image", "Passes (F / B)"]


def test_memory_and_the_papers() -> None:
    ordinary = published_result(data="cifar100c")
    ordinary["cost"] |= {"peak_device_bytes": 3 * 2**30, "memory_bytes": 5 * 2**20}
    on_cpu = published_result(data="cifar100c", overrides={"placement": "cpu"})
    entmin = published_result("entmin", data="cifar100c", average=40.0)
    table = memory_table(rows_of(ordinary, on_cpu, entmin))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.cells()}
    assert rows["Ramen (placement=encoder)"] == ["3,072", "900", "5.0", "14,526"]
    assert rows["Ramen (placement=cpu)"][-1] == "8,642"
    assert rows["EntMin"][-1] == "7,290"
    assert texts(memory_table(rows_of(published_result())), 0)[-1] == "11,564"
    changed = memory_table(rows_of(published_result(overrides={"capacity": 10})))
    assert "Paper, device" not in [column.head for column in changed.columns]


def test_the_largest_peak_of_all_seeds_counts() -> None:
    results = [published_result(seed=seed) for seed in (0, 1)]
    results[0]["cost"]["peak_device_bytes"] = 7 * 2**20
    results[1]["cost"]["peak_device_bytes"] = 9 * 2**20
    assert memory_table(rows_of(*results)).records[0]["peak_device_mib"] == 9
    results[1]["cost"]["peak_device_bytes"] = None
    assert memory_table(rows_of(*results)).records[0]["peak_device_mib"] is None


DOMAINS = ("fog", "snow")


def result(method, seed, fog, snow, gain):
    one = sample_result(method, seed=seed, domains=DOMAINS)
    scores = one["scores"]
    scores["domains"] = {"fog": fog, "snow": snow}
    scores["average"] = (fog + snow) / 2
    scores["difference"] = {"points": gain, "margin": 0.1}
    scores["tail"] = {"last": fog - 10, "worst": snow - 20, "windows": 10}
    return one


def table_of(*results):
    return ranking_table(rows_of(*results))


def cells(table):
    """The text of each row by its column's heading, by method."""
    heads = [column.head for column in table.columns]
    rows = [dict(zip(heads, (cell.text for cell in row), strict=True)) for row in table.cells()]
    return {row["Method"]: row for row in rows}


@pytest.fixture
def table():
    return table_of(
        *(result("clip", seed, 50, 40, 0.0) for seed in range(3)),
        *(result("tent", seed, 60 + seed / 10, 30, -0.5 + seed) for seed in range(3)),
        *(result("ramen", seed, 70 - seed / 10, 60 + seed / 5, 20 + seed / 20) for seed in range(3)),
    )


def test_who_wins(table):
    rows = cells(table)
    assert rows["Ramen"]["Than zero-shot"].startswith("better (p < 0.001")
    assert rows["Tent"]["Than zero-shot"].startswith("no different (p 0.")
    assert rows["CLIP"]["Than zero-shot"] == ""  # it is zero-shot
    assert rows["Ramen"]["Than the best"] == "best"
    assert rows["Tent"]["Than the best"] == "worse (p < 0.001)"
    # fog: Ramen, Tent, CLIP; snow: Ramen, CLIP, Tent
    assert [rows[name]["Mean rank"] for name in ("Ramen", "Tent", "CLIP")] == ["1.00", "2.50", "2.50"]
    assert rows["Tent"]["Worst domain"] == "30.00 snow"
    assert rows["Tent"]["Worst seed"] == "45.00"
    assert rows["Tent"]["Last tenth"] == "50.10 ± 0.10"
    assert rows["Ramen"]["Worst windows"] == "40.20 ± 0.20"
    assert rows["Ramen"]["Seeds"] == "3"


def test_corrections_count_the_rows_that_are_tested():
    """Two tests: the smaller p counts double, and the greater one is no smaller than that."""
    spread = (1.0, 2.0, 3.0)
    alone = table_of(*(result("tent", seed, 50, 50, gain) for seed, gain in enumerate(spread)))
    both = table_of(
        *(result("tent", seed, 50, 50, gain) for seed, gain in enumerate(spread)),
        *(result("ramen", seed, 60, 60, gain) for seed, gain in enumerate(spread)),
    )
    (one,) = alone.records
    assert [record["gain_p"] for record in both.records] == pytest.approx([2 * one["gain_p"]] * 2)


def test_results_of_earlier_versions_have_no_tail():
    old = result("ramen", 0, 60, 50, 10.0)
    del old["scores"]["tail"]
    (row,) = cells(table_of(old)).values()
    assert "Last tenth" not in row
    assert row["Worst domain"] == "50.00 snow"


def test_a_curve_beside_the_papers() -> None:
    results = [
        published_result(data="cifar100c", average=40.0 + k + seed, seed=seed, overrides={"topk": k})
        for k in (10, 1, 5, 7)
        for seed in (0, 1)
    ]
    results += [published_result("ensemble", data="cifar100c"), published_result("tent", data="cifar100c")]
    curve = sweep(results, "topk")
    assert (curve.parameter, curve.method, curve.data, curve.model, curve.protocol) == (
        ("topk", "ramen", "cifar100c", "ViT-B-16/openai", "mixed")
    )
    assert [(point.value, point.label) for point in curve.points] == [
        (1, "1"),
        (5, "5"),
        (7, "7"),
        (10, "10"),
    ]
    assert [point.mean for point in curve.points] == [41.5, 45.5, 47.5, 50.5]
    assert [point.seeds for point in curve.points] == [2] * 4
    assert reported(curve) == [45.26, 46.18, None, 45.93]
    assert list(curve.lines) == ["Ensemble"]
    assert "1 to 50 is meant" in curve.note


@pytest.mark.parametrize("protocol", ["mixed", "single"])
def test_ablation_beside_the_papers(protocol) -> None:
    results = [
        published_result(
            data="cifar100c", protocol=protocol, average=40.0, overrides=dict(settings), label=label
        )
        for label, settings in VARIANTS["ablation"].items()
    ]
    results[-1]["experiment"]["label"] = None
    curve = sweep(results, "ablation")
    assert [point.label for point in curve.points] == ["w/o PB & DC", "w/o DC", "w/o PB", "Ramen"]
    expected = {"mixed": [38.56, 39.13, 43.22, 46.13], "single": [42.42, 43.96, 43.02, 46.04]}
    assert reported(curve) == expected[protocol]


def test_weights_and_batch_beside_the_papers() -> None:
    weights = [
        published_result(data="cifar100c", average=40.0, overrides=dict(settings))
        for settings in VARIANTS["weights"].values()
    ]
    curve = sweep(weights, "weights")
    assert [(point.label, point.printed.mean) for point in curve.points] == (
        [("none", 43.9), ("similarity", 45.2), ("entropy", 45.2), ("both", 46.1)]
    )
    batches = [published_result(data="cifar100c", average=46.0, batch=batch) for batch in (10, 1)]
    curve = sweep(batches, "batch")
    assert [(point.value, point.printed.mean) for point in curve.points] == [(1, 46.18), (10, 46.17)]


def test_another_experiment_has_no_curve_of_the_papers() -> None:
    results = [
        published_result(data="cifar100c", average=40.0, overrides={"topk": k, "lr": 0.5}) for k in (1, 5)
    ]
    curve = sweep(results, "topk")
    assert reported(curve) == [None, None]
    assert curve.note == "Without the paper's numbers: lr=0.5 instead of 0.01."
    other = [
        published_result(data="cifar100c", model="RN101/openai", average=20.0, overrides={"topk": k})
        for k in (1, 5)
    ]
    assert "RN101" in sweep(other, "topk").note


def test_results_that_make_no_curve() -> None:
    mixed = [
        sample_result(parameters={"topk": 1, "lr": 0.1}),
        sample_result(parameters={"topk": 2, "lr": 0.2}),
    ]
    with pytest.raises(ValueError, match=r"differ in topk alone, got lr 0\.1 and 0\.2"):
        sweep(mixed, "topk")
    with pytest.raises(ValueError, match="of one stream and model, got another for Ensemble"):
        sweep([sample_result(), sample_result("ensemble", protocol="single")], "topk")
    with pytest.raises(ValueError, match="runs of 'ramen', got none"):
        sweep([sample_result("tent")], "lr")
    with pytest.raises(ValueError, match="has no parameter 'nothing'"):
        sweep([sample_result()], "nothing")
