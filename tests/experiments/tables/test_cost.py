"""The tables of time and memory."""

from ramen.experiments.analysis.grouping import by_setting, group
from ramen.experiments.tables.cost import memory_table, time_table
from ramen.experiments.tables.group_rows import group_rows
from tests.fakes.published_results import published_result


def rows_of(*results):
    (groups,) = by_setting(group(results))
    return group_rows(groups)


def texts(table, row: int) -> list[str]:
    return [cell.text for cell in table.rows[row]]


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
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
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
