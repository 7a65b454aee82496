"""The tables of the page can be made from the committed results."""

from tests.helpers.benchmark_scripts import load_benchmark


def test_tables_of_the_committed_results(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    page = load_benchmark("fair_table_page")
    tables = page.tables()
    assert set(tables) == {f"{name} {what}" for name in page.FILES for what in ("scores", "losses")}
    for model in page.FILES:
        assert tables[f"{model} scores"].count("`ensemble` (zero-shot)") == 1
        assert "the search stream" in tables[f"{model} losses"]
