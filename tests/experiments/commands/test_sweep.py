"""``ramen sweep``, with made-up results and with real runs of the tiny model."""

import json
from pathlib import Path

from tests.helpers.ramen_command import ramen

FEW = ("--data-set", "pictures=4", "--device", "cpu")


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
