"""What the commands print for made-up results, compared with files; RAMEN_WRITE_GOLDEN=1 writes them anew."""

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ramen.experiments.experiment import Experiment, plan
from ramen.experiments.store import write_result
from ramen.experiments.tune import SEEDS, load_spaces, plan_search, tuning_domains
from ramen.experiments.variations import experiments, parse_variation
from tests.experiments.pages import report
from tests.fakes.published_results import published_result
from tests.fakes.results import sample_result
from tests.helpers.ramen_command import ramen

GOLDEN = Path(__file__).with_name("golden")
KINDS = ("accuracy", "averages", "ranking", "time", "memory", "changes")
DOMAINS = ("fog", "snow", "frost", "brightness", "contrast")


def printed(*words: object) -> str:
    return ramen(*words).stdout


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("RAMEN_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    if name.endswith(".json"):
        same(json.loads(text), json.loads(expected))
    elif name.endswith(".csv"):
        same(numbers(text), numbers(expected))
    else:
        assert text.splitlines() == expected.splitlines()


def numbers(text: str) -> list[dict[str, Any]]:
    """The rows of a CSV file, in numbers where they are numbers."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [{name: number(value) for name, value in row.items()} for row in rows]


def number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def same(found: Any, expected: Any, where: str = "") -> None:
    """Equal, numbers but for their last digits."""
    if isinstance(expected, dict):
        assert set(expected) <= set(found), where
        for key, value in expected.items():
            same(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, f"{where}[{place}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), where
    else:
        assert found == expected, where


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    runs = [
        published_result(method, seed=seed, offset=seed / 4 + len(method) / 7)
        for method in ("clip", "tent", "sar", "ramen")
        for seed in range(3)
    ]
    runs += [published_result("entmin", average=70.0), published_result(overrides={"topk": 7}, average=71.0)]
    runs += [
        published_result("ramen", data="cifar100c", offset=0.5),
        published_result("clip", data="cifar100c"),
    ]
    runs += [sample_result(data="pacs", seed=seed) for seed in range(2)]
    for number, run in enumerate(runs):
        if number % 4 == 1:
            run["cost"] |= {"peak_device_bytes": 3 * 2**30, "ms_an_image": 2.5 + number}
        write_result(folder / f"{number:02}.json", run)
    return folder


@pytest.mark.parametrize(("form", "ending"), [("rich", "txt"), ("markdown", "md"), ("latex", "tex")])
def test_compare(compared: Path, form: str, ending: str) -> None:
    check(f"compare.{ending}", printed("compare", compared, "--table", "all", "--format", form))


@pytest.mark.parametrize("kind", KINDS)
def test_compare_as_csv(compared: Path, kind: str) -> None:
    check(f"compare-{kind}.csv", printed("compare", compared, "--table", kind, "--format", "csv"))


def test_compare_as_json(compared: Path) -> None:
    check("compare.json", printed("compare", compared, "--table", "all", "--json"))


def finish(planned: Sequence[Experiment], store: Path, root: Path | None) -> None:
    """Write results of these experiments, as if they had been run."""
    for place, one in enumerate(planned):
        run = sample_result(
            one.method,
            seed=one.seed,
            data=one.data,
            average=40 + 7 * place % 11,
            domains=DOMAINS,
            batch=one.batch,
        )
        run["experiment"], run["overrides"] = one.identity(), dict(one.overrides)
        run["provenance"]["method"]["parameters"] = one.all_parameters()
        run["provenance"]["dataset"]["root"] = None if root is None else str(root.resolve())
        write_result(one.path(store), run)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of results of sweeps, and the folder of their data."""
    folder, root = tmp_path_factory.mktemp("swept"), tmp_path_factory.mktemp("data")
    bases = plan(["ramen", "ensemble", "entmin"], data="cifar100c", root=root, seeds=(0, 1))
    own = [one for one in bases if one.method == "ramen"]
    points = [run for text in VARIED for run in experiments(parse_variation(text, own[0]), own)]
    finish(list({one.key(): one for one in [*bases, *points]}.values()), folder, root)
    return folder, root


VARIED = ("topk=1,5,7", "ablation", "placement", "batch=10,100")


def swept_words(swept: tuple[Path, Path]) -> list[object]:
    folder, root = swept
    words: list[object] = ["sweep", "--data", "cifar100c", "--root", root, "--store", folder, "--seeds", 2]
    words += ["--device", "cpu"]
    return words + [word for text in VARIED for word in ("--vary", text)]


def test_sweep(swept: tuple[Path, Path]) -> None:
    check("sweep.txt", printed(*swept_words(swept)))
    names = sorted(path.name for path in (swept[0] / "figures").iterdir())
    assert names == [
        f"cifar100c-mixed-ramen-{name}.png" for name in ("ablation", "batch", "placement", "topk")
    ]


def test_sweep_as_csv(swept: tuple[Path, Path]) -> None:
    """One header for all rows."""
    check("sweep.csv", printed(*swept_words(swept), "--format", "csv"))


def test_sweep_as_json(swept: tuple[Path, Path]) -> None:
    shown = json.loads(printed(*swept_words(swept), "--json"))
    check("sweep.json", json.dumps({"tables": shown["tables"], "failed": shown["failed"]}, indent=1))


def test_tune(tmp_path: Path) -> None:
    spaces = tmp_path / "spaces.toml"
    spaces.write_text("budget = 2\n[default]\nlr = [1e-3, 0.3]\n")
    domains = tuning_domains("tiny", None)
    bases = plan(["tent", "ensemble"], data="tiny", seeds=SEEDS, data_options={"domains": domains})
    searched = plan_search(bases, load_spaces(spaces)).experiments
    finish(
        list({one.key(): one for one in searched}.values()), tmp_path / "store" / "tuning" / ".trials", None
    )
    words = ["--store", tmp_path / "store", "--spaces", spaces, "--device", "cpu"]
    shown = printed("tune", "--method", "tent", "--method", "ensemble", *words)
    check("tune.txt", shown)


def test_report(compared: Path, tmp_path: Path) -> None:
    from ramen.experiments.store import read_result

    runs = [read_result(path) for path in sorted(compared.glob("*.json"))]
    runs += [sample_result(method, protocol="single") for method in ("clip", "tent", "ramen")]
    runs += [sample_result(method) for method in ("clip", "tent", "ramen")]
    page = report(tmp_path, runs)
    shown = {
        "tables": page.tables,
        "headings": [attributes["id"] for tag, attributes in page.elements if tag == "section"],
        "figures": [attributes["alt"] for tag, attributes in page.elements if tag == "img"],
        "words": [" ".join(words.split()) for words in page.words if words.strip()],
    }
    check("report.json", json.dumps(shown, indent=1, ensure_ascii=False))
