"""The table of a sweep."""

from ramen.experiments.analysis.sweep_curve import Sweep
from ramen.experiments.tables.sweeps import sweep_table
from tests.fakes.published_results import published_result


def test_points_then_references() -> None:
    results = [
        published_result(data="cifar100c", average=40.0 + k + seed, seed=seed, overrides={"topk": k})
        for k in (10, 1, 5, 7)
        for seed in (0, 1)
    ]
    results += [published_result("ensemble", data="cifar100c")]
    sweep = Sweep.from_results(results, "topk")
    table = sweep_table(sweep)
    texts = [cell.text for cell in table.rows[1]]
    assert texts == ["5", "45.50 ± 0.71", *texts[2:3], "46.18 ± 0.03", "-0.68", *texts[5:6], "2"]
    assert [row[4].marked for row in table.rows] == [
        True,
        False,
        False,
        True,
        False,
    ]  # 2 * 0.71 / sqrt(2) = 1
    assert table.rows[-1][0].text == "Ensemble"
    assert [one["value"] for one in table.records[:4]] == [1, 5, 7, 10]
