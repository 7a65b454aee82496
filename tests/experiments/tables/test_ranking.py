"""The table that says who wins."""

import pytest

from ramen.experiments.analysis.grouping import by_setting, group
from ramen.experiments.tables.group_rows import group_rows
from ramen.experiments.tables.ranking import ranking_table
from tests.fakes.results import sample_result

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
    (groups,) = by_setting(group(results))
    return ranking_table(group_rows(groups))


def cells(table):
    """The text of each row by its column's heading, by method."""
    heads = [column.head for column in table.columns]
    rows = [dict(zip(heads, (cell.text for cell in row), strict=True)) for row in table.rows]
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


def test_records_have_the_numbers(table):
    records = {record["method"]: record for record in table.records}
    assert records["ramen"]["best"] is True
    assert records["tent"]["behind_best"] == pytest.approx(45.05 - 65.05)
    assert records["tent"]["gain_p"] > 0.05 > records["ramen"]["gain_p"]
    assert records["clip"]["gain_p"] is None
    assert records["clip"]["last_tenth"] == 40


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


def test_one_seed_is_not_tested():
    rows = cells(table_of(result("clip", 0, 50, 40, 0.0), result("ramen", 0, 60, 50, 10.0)))
    assert "Than zero-shot" not in rows["Ramen"]
    assert rows["Ramen"]["Than the best"] == "best"
    assert rows["CLIP"]["Than the best"] == ""
    assert "Worst seed" not in rows["Ramen"]


def test_results_of_earlier_versions_have_no_tail():
    old = result("ramen", 0, 60, 50, 10.0)
    del old["scores"]["tail"]
    (row,) = cells(table_of(old)).values()
    assert "Last tenth" not in row
    assert row["Worst domain"] == "50.00 snow"
