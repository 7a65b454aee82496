"""What the pages say is what the program says."""

import json
import re
from pathlib import Path

import pytest
import typer.main

import ramen
from ramen.cli import app
from ramen.experiments.run.results import read_result
from ramen.experiments.studies import combinations, harm_tables
from ramen.experiments.studies.poison_tables import loss_table, summary_table
from ramen.experiments.studies.study_result import stored_table, study
from ramen.experiments.tables.markdown import markdown_page
from ramen.serve.commands.classify import EPILOG
from ramen.serve.outputs.row_formats import COLUMNS
from tests.helpers.benchmark_scripts import load_benchmark

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS.parent / "benchmarks/results"


def test_page_of_methods_has_every_method_and_its_passes():
    page = (DOCS / "methods.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) forward, (\d+) backward \|", page, re.M)
    stated = {name: (int(forwards), int(backwards)) for name, forwards, backwards in rows}
    own = {path.stem for path in (DOCS.parent / "src/ramen/methods").glob("*.py")} & set(ramen.list_methods())
    records = {name: ramen.describe(name) for name in own}
    assert stated == {name: (info.forwards, info.backwards) for name, info in records.items()}


def test_page_of_scaling_says_which_methods_share_a_stream():
    """Of a method that the table does not have yet, ``ramen describe`` says it."""
    page = (DOCS / "scaling.md").read_text().split("## Other methods")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", page, re.M)
    stated = {}
    for names, says in rows:
        stated |= dict.fromkeys(re.findall(r"`(\w+)`", names), not says.startswith("refuse"))
    assert len(stated) > 15
    assert stated == {name: ramen.describe(name).joins_groups for name in stated}
    assert "`ramen describe NAME`" in page


def test_links_inside_the_project_lead_somewhere():
    pages = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    ]
    assert len(links) > 10
    dead = [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()]
    assert not dead


@pytest.mark.parametrize("name", ["speed_h200_fp16", "speed_cpu_fp32"])
def test_page_of_performance_shows_the_committed_results(name, monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    speed = load_benchmark("speed")
    results = json.loads((DOCS.parent / f"benchmarks/results/{name}.json").read_text())
    page = (DOCS / "performance.md").read_text()
    assert markdown_page(speed.tables(results["settings"])).strip() in page


def test_page_of_performance_shows_the_other_methods(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    speed = load_benchmark("speed")
    results = json.loads((DOCS.parent / "benchmarks/results/methods_speed_h200_fp16.json").read_text())
    found = [t for t in speed.tables(results["settings"]) if t.title.endswith("methods with fused passes")]
    assert len(found) == 2
    page = (DOCS / "performance.md").read_text()
    assert all(markdown_page([table]).strip() in page for table in found)


def test_page_of_methods_shows_the_gains_over_values_chosen_by_hand(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    gains = load_benchmark("gains")
    results = json.loads((DOCS.parent / "benchmarks/results/gains.json").read_text())
    assert {result["classes"] for result in results.values()} == {2, 3, 10, 24, 100, 1000}
    assert markdown_page([gains.summary(results)]).strip() in (DOCS / "methods.md").read_text()


def test_page_of_methods_shows_the_committed_study_of_harm():
    result = read_result(DOCS.parent / "benchmarks/results/harm_tiny_cpu.json")
    made_again = study("harm", result["title"], [harm_tables.gain_table(result["data"])], result["data"])
    assert made_again["tables"][0] == result["tables"][0]
    tables = [stored_table(table) for table in result["tables"]]
    assert len(tables) == 2
    assert markdown_page(tables).strip() in (DOCS / "methods.md").read_text()


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("combinations_*.json")))
def test_page_of_ablations_shows_the_committed_studies(name):
    result = read_result(RESULTS / f"{name}.json")
    assert study("", "", combinations.tables(result["data"]), {})["tables"] == result["tables"]
    page = (DOCS / "ablations.md").read_text()
    assert markdown_page([stored_table(table) for table in result["tables"]]).strip() in page


def test_page_of_methods_shows_the_poisoned_streams():
    result = json.loads((DOCS.parent / "benchmarks/results/poison_tiny_h200.json").read_text())
    data = result["data"]
    assert study("", "", [summary_table(data), loss_table(data)], {})["tables"] == result["tables"]
    page = (DOCS / "methods.md").read_text()
    assert markdown_page([stored_table(table) for table in result["tables"]]).strip() in page


def test_page_of_methods_shows_the_defences():
    result = json.loads((RESULTS / "poison_defences_tiny_cpu.json").read_text())
    data = result["data"]
    assert study("", "", [summary_table(data), loss_table(data)], {})["tables"] == result["tables"]
    assert markdown_page([stored_table(result["tables"][0])]).strip() in (DOCS / "methods.md").read_text()


def test_readme_states_the_committed_speeds():
    results = json.loads((DOCS.parent / "benchmarks/results/speed_h200_fp16.json").read_text())
    page = (DOCS.parent / "README.md").read_text()
    assert len(results["settings"]) == 3
    for result in results["settings"].values():
        about, speeds = result["setting"], {row["what"]: row["images_a_second"] for row in result["rows"]}
        sizes = ", ".join(str(about[name]) for name in ("classes", "capacity", "topk", "batch"))
        model = "/".join(about["model"].rsplit("-", 1))
        stated = f"| {model} | {sizes} | {speeds['ramen, fp16']:,.0f} | {speeds['ramen, sign']:,.0f} |"
        assert stated in page


def test_page_of_classify_names_every_column_option_and_exit_code():
    page = (DOCS / "classify.md").read_text()
    table = page[page.index("| column |") : page.index("One unreadable file")]
    first_cells = " ".join(row.split("|")[1] for row in table.splitlines() if row.startswith("|"))
    assert re.findall("`(.*?)`", first_cells) == [*COLUMNS, "label_2", "probability_2"]
    command = typer.main.get_command(app).commands["classify"]
    options = {name for option in command.params for name in option.opts if name.startswith("--")}
    assert len(options) > 20
    assert {name for name in options if name not in page} == set()
    written = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))
    assert written - {"--nproc-per-node"} <= options  # which is torchrun's
    codes = re.findall(r"^\| ([\d, ]+) \|", page, re.M)
    assert ", ".join(codes) == "0, 1, 2, 3, 130, 143"
    assert all(code in EPILOG for code in ", ".join(codes).split(", "))


def test_page_of_the_service_names_what_there_is():
    """Options, codes of errors, metrics and endpoints."""
    page = (DOCS / "service.md").read_text()
    commands = typer.main.get_command(app).commands
    ours = [commands["serve"], commands["classify"], *commands["token"].commands.values()]
    options = {name for command in ours for option in command.params for name in option.opts}
    written = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) - {"--data-binary", "--help"}
    assert len(written) > 20
    assert written - {"--nproc-per-node"} <= options  # which is torchrun's
    serve = {name: option.default for option in commands["serve"].params for name in option.opts}
    for name, value in re.findall(r"`(--[a-z-]+)` \(([\d,]+)\)", page):
        assert float(serve[name]) == float(value.replace(",", "")), name
    for name, value in re.findall(r"`(--[a-z-]+)` \((\d+ [MG]iB)\)", page):
        assert serve[name] == value
    sources = "".join(path.read_text() for path in (DOCS.parent / "src/ramen/serve/http").glob("*.py"))
    table = page[page.index("| status |") : page.index('Errors are `{"error"')]
    codes = re.findall(r"^\| (\d{3}) \| (.*?) \|", table, re.M)
    stated = [int(status) for status, _ in codes]
    assert stated == [400, 401, 403, 404, 409, 413, 415, 422, 429, 503, 504]
    assert all(f'"{code}"' in sources for _, listed in codes for code in re.findall(r"`(\w+)`", listed))
    counted = set(re.findall(r"\bramen_(\w+?)(?:_total)?\b", page)) - {""}
    assert len(counted) > 8
    assert {name for name in counted if f'"ramen_{name}"' not in sources} == set()


def test_page_of_models_shows_what_exported_files_are_worth():
    export = load_benchmark("export")
    results = json.loads((DOCS.parent / "benchmarks/results/export_tiny_cpu.json").read_text())
    assert markdown_page([export.table(results)]).strip() in (DOCS / "models.md").read_text()


def test_page_of_reliability_states_the_committed_results():
    page = (DOCS / "reliability.md").read_text()
    service = json.loads((DOCS.parent / "benchmarks/results/service_cpu.json").read_text())["checks"]
    values = {check: {row["what"]: row for row in one["rows"]} for check, one in service.items()}
    overload, hostile, failing = values["R7"], values["R10"], values["R13"]
    refused = overload["requests that were refused"]["value"]
    within = overload["refused within, 99 %, at the client"]["measured"]
    assert (
        f"{refused} refusals, all with `Retry-After`, 99 % within {float(within.split()[0]):.0f} ms" in page
    )
    late = float(overload["answered within, 99 %, from sending"]["measured"].split()[0].replace(",", ""))
    assert f"99 % of the answers within {late / 1000:.2f} s of a deadline of 2 s" in page
    answered = values["R8"]["requests with an answer"]["measured"]
    images = values["R8"]["answers that came twice"]["measured"].split()[-1]
    assert f"{answered} requests with {images} images" in page
    slowest = next(row for what, row in hostile.items() if what.startswith("the slowest file"))
    peak = next(row for what, row in hostile.items() if what.startswith("memory at the peak"))
    numbers = [float(row["measured"].split()[0]) for row in (slowest, peak)]
    assert f"Over HTTP 1,284 files: the slowest {numbers[0]:.0f} ms, {numbers[1]:.0f} MB" in page
    assert f"{failing['steps that failed']['measured']} steps failed" in page
    poison = json.loads((DOCS.parent / "benchmarks/results/poison_tiny_h200.json").read_text())["tables"][0]
    row = next(row for row in poison["rows"] if row[0] == "ramen" or row[0] == {"text": "ramen"})
    lost = [str(cell["text"] if isinstance(cell, dict) else cell).split()[0] for cell in row[4:6]]
    assert f"{lost[0]} points at 20 %, {lost[1]} at 50 %" in page
    assert {int(number) for number in re.findall(r"^\| R(\d+) \|", page, re.M)} == set(range(1, 18))
