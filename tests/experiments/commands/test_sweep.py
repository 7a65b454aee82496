"""``ramen sweep``, with made-up results and with real runs of the tiny model."""

import csv
import io
import json
from pathlib import Path

from typer.testing import CliRunner

from ramen.cli import app
from ramen.experiments import workers
from tests.fakes.results import sample_result

cli = CliRunner()


FEW = ("--data-set", "pictures=4", "--device", "cpu")


WIDE = {"COLUMNS": "140", "TERM": "dumb"}


def ramen(*arguments: object, code: int = 0, env=WIDE):
    result = cli.invoke(app, list(map(str, arguments)), env=env)
    assert result.exit_code == code, result.output + result.stderr
    return result


def test_a_real_sweep_shares_runs_with_a_real_comparison(tmp_path) -> None:
    common = ("--data", "tiny", *FEW, "--store", tmp_path / "s")
    swept = ramen("sweep", "--vary", "topk=1,auto", "--vary", "ablation", *common, "--json")
    content = json.loads(swept.stdout)
    topk, ablation = content["tables"]
    assert [row.get("value") for row in topk["rows"]] == [1, "auto", None, None]
    assert [row["method"] for row in topk["rows"]] == ["ramen", "ramen", "Ensemble", "EntMin"]
    assert [row.get("value") for row in ablation["rows"]][:4] == ["w/o PB & DC", "w/o DC", "w/o PB", "Ramen"]
    assert all(Path(figure).stat().st_size > 5000 for figure in content["figures"])
    assert topk["rows"][1]["measured"] == ablation["rows"][3]["measured"]  # the preset's

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s" / "tiny").rglob("*.json")}
    assert len(before) == 2 + 3 + 2  # two values, three more variants, two references
    compared = ramen("compare", "--run", "--method", "ramen", "--method", "entmin", *common, "--json")
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "s" / "tiny").rglob("*.json")}
    assert after == before
    rows = {row["method"]: row for row in json.loads(compared.stdout)["tables"][1]["rows"]}
    assert rows["ramen"]["measured"] == topk["rows"][1]["measured"]
    assert rows["entmin"]["measured"] == topk["rows"][3]["measured"]


def test_placement_has_tables_of_cost_and_points_are_shared(tmp_path, monkeypatch) -> None:
    asked = []

    def run_all(experiments, out, *, on_missing, **where):
        asked.extend(one.key() for one in experiments)
        results = [sample_result(one.method, seed=one.seed) for one in experiments]
        return [
            {**result, "experiment": one.identity()} for one, result in zip(experiments, results, strict=True)
        ]

    monkeypatch.setattr(workers, "run_all", run_all)
    options = ("--data", "cifar100c", "--root", "x", "--device", "cpu", "--store", tmp_path)
    vary = ("--vary", "placement", "--vary", "topk=1,5")
    tables = json.loads(ramen("sweep", *vary, *options, "--json").stdout)["tables"]
    accuracy, time, memory, _ = tables
    assert [row.get("value") for row in accuracy["rows"]] == ["encoder", "split", "cpu", None, None]
    assert [round(row["paper_ms_an_image"], 1) for row in time["rows"]] == [5.7, 18.7, 53.2]  # Table 7
    assert [row["paper_peak_device_mib"] for row in memory["rows"]] == [14526, 8724, 8642]
    assert (
        len(asked) == len(set(asked)) == 3 + 1 + 2
    )  # topk 5 is the preset's, with the memory at the encoder

    rows = list(csv.DictReader(io.StringIO(ramen("sweep", *vary, *options, "--format", "csv").stdout)))
    assert [row["parameter"] for row in rows] == ["placement"] * 5 + ["topk"] * 4
    assert "hardware" not in rows[0]
