"""``ramen run`` from the outside."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.experiments import workers
from ramen.experiments.results import Rows, groups_of
from ramen.experiments.store import read_result
from ramen.experiments.tables import summary_table
from ramen.methods._registry import list_methods
from tests.fakes.results import sample_result

cli = CliRunner()


SMALL = ["--data-set", "pictures=3", "--domain", "fog", "--domain", "neon", "--batch", "4"]


pytestmark = pytest.mark.usefixtures("one_classifier")


def test_from_the_command_line_to_the_file(tmp_path):
    command = ["run", "--method", "ramen", "--method", "ensemble", "--seeds", "2", "--set", "topk=2", *SMALL]
    result = cli.invoke(app, [*command, "--per-domain", "2", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)  # nothing else is on it
    assert [(r["experiment"]["method"], r["experiment"]["seed"]) for r in results] == [
        ("ramen", 0),
        ("ramen", 1),
        ("ensemble", 0),
        ("ensemble", 1),
    ]
    first = results[0]
    assert first["overrides"] == {"topk": 2}
    assert first["experiment"]["parameters"]["topk"] == 2
    assert first["experiment"]["protocol_parameters"] == {"per_domain": 2}
    assert first["experiment"]["data_options"] == {"domains": ["fog", "neon"], "pictures": 3}
    assert first["cost"]["images"] == 4
    files = sorted((tmp_path / "tiny" / "mixed").glob("*.json"))
    assert len(files) == 4
    assert all(read_result(file) in results for file in files)
    assert "weights sha256:" in result.stderr

    again = cli.invoke(app, [*command, "--per-domain", "2", "--out", str(tmp_path)])
    assert again.exit_code == 0
    assert "±" in again.stdout
    assert "Ensemble" in again.stdout


def test_the_table_over_seeds():
    results = [sample_result("ramen", seed=seed) for seed in (0, 1, 2)]
    for result, average, repaired in zip(results, (70.0, 71.0, 72.0), (10, 20, 30), strict=True):
        result["scores"]["average"] = average
        result["scores"]["difference"]["points"] = average - 60
        result["scores"]["changes"]["repaired"] = repaired
        result["cost"]["ms_an_image"] = 3.0
    table = summary_table(Rows(groups_of([*results, sample_result("tent")])))
    assert len(table) == 2
    texts = [cell.text for cell in table.cells()[0]]
    assert texts == ["Ramen", "71.00 ± 1.00", "+11.00 ± 0.80", "20", "24", "7.50 ± 0.00", "3.00 ± 0.00", "3"]


def test_everything_runs_on_the_tiny_model(tmp_path):
    """All methods, with their presets, also those that need prompts and templates."""
    command = ["run", "--method", "all", "--data-set", "pictures=2", "--domain", "fog", "--json"]
    quick = [f"--set={fewer}=1" for fewer in ("rounds", "steps", "iterations", "views")]
    result = cli.invoke(app, [*command, *quick, "--protocol", "single", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)
    assert sorted(r["experiment"]["method"] for r in results) == list_methods()
    assert {r["kind"] for r in results} == {"run"}


def test_ctrl_c_ends_with_the_usual_status(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "run", interrupt)
    assert cli.invoke(app, ["run", *SMALL, "--out", str(tmp_path)]).exit_code == 130


def test_as_a_module_and_cheaply():
    """``python -m ramen`` is the command line; its help needs neither torch nor open_clip."""
    code = "import sys, runpy; sys.argv = ['ramen', 'run', '--help']\ntry: runpy.run_module('ramen')\n"
    code += "except SystemExit: print([m for m in ('torch', 'open_clip', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--per-domain" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
