"""The table of changed answers."""

from ramen.experiments.analysis.grouping import by_setting, group
from ramen.experiments.tables.changes import changes_table
from ramen.experiments.tables.group_rows import group_rows
from tests.fakes.published_results import published_result


def rows_of(*results):
    (groups,) = by_setting(group(results))
    return group_rows(groups)


def texts(table, row: int) -> list[str]:
    return [cell.text for cell in table.rows[row]]


def test_changed_answers_over_all_seeds() -> None:
    results = [published_result(seed=seed) for seed in (0, 1)]
    for result, (repaired, broken) in zip(results, ((30, 10), (50, 30)), strict=True):
        counts = {
            "both_right": 100,
            "repaired": repaired,
            "broken": broken,
            "both_wrong": 100 - repaired - broken,
        }
        result["scores"]["changes"] = counts
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
