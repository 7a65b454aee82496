"""The tables of accuracies: the paper's layout, and averages."""

import io

import pytest
from rich.console import Console

from ramen.experiments.analysis.grouping import by_setting, group
from ramen.experiments.tables.accuracy import accuracy_table, averages_table
from ramen.experiments.tables.changes import changes_table
from ramen.experiments.tables.cost import cost_table, memory_table, time_table
from ramen.experiments.tables.group_rows import group_rows
from ramen.experiments.tables.ranking import ranking_table
from ramen.experiments.tables.terminal import print_tables, width
from tests.fakes.published_results import published_result
from tests.fakes.results import sample_result


def rows_of(*results):
    (groups,) = by_setting(group(results))
    return group_rows(groups)


def texts(table, row: int) -> list[str]:
    return [cell.text for cell in table.rows[row]]


def test_the_papers_shape_with_its_numbers_below() -> None:
    results = [published_result("ramen", seed=seed) for seed in (0, 1, 2)]
    results += [published_result("tent", offset=5.0), published_result("clip")]
    table = accuracy_table(rows_of(*results))
    heads = "Method Gauss Shot Impul Defoc Glass Motion Zoom Snow Frost Fog Brit Contr Elast Pixel JPEG Avg."
    assert " ".join(column.head for column in table.columns) == heads
    assert [row[0].text for row in table.rows] == ["CLIP", "  paper", "Tent", "  paper", "Ramen", "  paper"]
    ramen = "61.0 63.3 56.0 77.2 64.1 77.2 78.9 80.9 80.3 78.0 88.1 79.8 72.0 65.5 67.5 72.7"
    assert texts(table, 5)[1:] == ramen.split()
    assert texts(table, 4)[1:] == ramen.split()  # measured just so
    assert not any(cell.marked for row in (0, 1, 3, 4, 5) for cell in table.rows[row])
    assert all(cell.marked for cell in table.rows[2][1:])  # five points beside the paper's
    assert any(
        note.startswith("* differs from the paper's number by more than 2 sqrt") for note in table.notes
    )
    assert width(table, 0) <= 100


def test_best_and_second_best_of_a_column() -> None:
    results = [published_result(name) for name in ("clip", "tent", "ramen")]
    table = accuracy_table(rows_of(*results))
    gauss = {row[0].text: row[1].emphasis for row in table.rows if row[0].text != "  paper"}
    assert gauss == {"CLIP": None, "Tent": "second", "Ramen": "best"}
    zoom = [row[7].emphasis for row in table.rows[::2]]
    assert zoom == [None, "second", "best"]
    assert all(cell.emphasis is None for cell in accuracy_table(rows_of(published_result())).rows[0])
    two = averages_table(rows_of(published_result("clip"), published_result("ramen")))
    assert [row[1].emphasis for row in two.rows] == [None, "best"]  # the other of two is no second best


def test_only_comparable_rows_have_the_papers_numbers() -> None:
    table = accuracy_table(rows_of(published_result("tent"), published_result(overrides={"topk": 7})))
    assert [row[0].text for row in table.rows] == ["Tent", "  paper", "Ramen"]
    assert "Without the paper's numbers for Ramen: topk=7 instead of 50." in table.notes
    records = {(one["method"], one["domain"]): one for one in table.records}
    assert records["tent", "fog"]["paper"] == 74.0
    assert records["ramen", "fog"]["paper"] is None
    assert records["ramen", "average"]["without_paper"] == "topk=7 instead of 50"
    assert len(records) == 2 * 16


def test_a_data_set_that_the_paper_does_not_have() -> None:
    groups = rows_of(sample_result(data="pacs"), sample_result("tent", data="pacs"))
    table = averages_table(groups)
    assert [column.head for column in table.columns] == ["Method", "Average", "Above zero-shot", "Seeds"]
    assert table.notes[0] == "Without the paper's numbers: the paper does not use pacs."


def test_averages_with_deviations_and_differences() -> None:
    results = [published_result(average=value, seed=seed) for seed, value in enumerate((71.0, 72.0, 73.0))]
    results += [published_result("tent", average=67.0), published_result("entmin", average=70.0)]
    table = averages_table(rows_of(*results))
    rows = [[cell.text for cell in (row[0], row[1], *row[3:])] for row in table.rows]
    assert rows[0] == ["EntMin", "70.00", "67.12 ± 0.04", "+2.88", "1"]
    assert rows[1] == ["Tent", "67.00", "66.9 ± 0.2", "+0.10", "1"]
    assert rows[2] == ["Ramen", "72.00 ± 1.00", "72.7 ± 0.1", "-0.70", "3"]
    marks = {row[0].text: row[4].marked for row in table.rows}
    assert marks == {"EntMin": True, "Tent": False, "Ramen": False}  # Ramen: 2 sqrt(1/3 + 0.01) = 1.17
    assert any("EntMin is in no table" in note for note in table.notes)
    record = next(one for one in table.records if one["method"] == "ramen")
    assert record["difference"] == pytest.approx(-0.7)
    assert record["beyond_deviation"] is False
    assert record["deviation"] == pytest.approx(1.0)


def test_gain_is_that_of_the_results() -> None:
    result = published_result(average=60.0)
    result["scores"]["difference"] = {"points": 1.5, "margin": 0.25}
    assert texts(averages_table(rows_of(result)), 0)[2] == "+1.50 ± 0.25"


def test_every_table_prints_in_forty_columns() -> None:
    groups = rows_of(published_result("tent"), published_result("ramen"))
    console = Console(file=io.StringIO(), width=40, color_system=None)
    makers = (accuracy_table, averages_table, time_table, memory_table, cost_table, changes_table)
    makers += (ranking_table,)
    print_tables(console, [make(groups) for make in makers])
    assert max(map(len, console.file.getvalue().splitlines())) <= 40
