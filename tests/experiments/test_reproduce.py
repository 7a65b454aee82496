"""The paper's tables and figures, planned and measured again."""

import json
import math
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.experiments import paper, reproduce
from ramen.experiments.analyses import Bins, CacheTimes
from ramen.experiments.paper import Value
from ramen.experiments.reproduce import (
    EXHIBITS,
    Number,
    Setup,
    Speed,
    beside,
    draw,
    fetch,
    listing,
    model_of,
    runs_of,
    tables,
    with_analyses,
)
from tests.fakes.layouts import write_cifar_c
from tests.helpers.tiny_models import TINY_VIT, add_tiny_model


def setup(exhibit, data, **given):
    return Setup(data, exhibit.architecture(data), root=".", **{"seeds": 1, **given})


def texts(table):
    return [[cell.text for cell in row] for row in table.cells()]


# -- the plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXHIBITS)
def test_every_number_has_the_papers_own_setting(name):
    """Runs for all of its numbers, but those that an analysis measures; and no run that nobody reads."""
    exhibit = EXHIBITS[name]
    for data in exhibit.data:
        numbers = list(exhibit.makes(setup(exhibit, data)))
        assert numbers
        analysed = [one for one in numbers if not one.runs]
        assert len(analysed) == {"table 3": 1, "table 4": 10}.get(name, 0)
        for run in runs_of(numbers):
            assert (run.data, run.root, run.seed) == (data, ".", 0)
            assert run.model == f"{exhibit.architecture(data)}/openai"
        for one in numbers:
            for run in one.runs:
                assert paper.other_parameters(run.identity(), one.varied) is None


def test_numbers_of_some_exhibits():
    def made(name, data):
        return list(EXHIBITS[name].makes(setup(EXHIBITS[name], data)))

    table = made("table 5", "cifar10c")
    assert len(table) == 12 * 16
    by_place = {(one.row, one.part): one.reported for one in table}
    assert str(by_place["Ramen", None]) == "72.7 ± 0.1"
    assert by_place["Tent", "fog"].mean == 74.0
    assert len(runs_of(table)) == 12
    assert {one.runs[0].protocol for one in made("figure 2", "cifar100c")} == {"single", "mixed"}
    curve = {one.row: one for one in made("figure 8", "cifar10c")}
    assert curve["capacity=500"].reported.mean == 71.44
    assert curve["capacity=500"].runs[0].parameters["capacity"] == 500
    assert curve["EntMin"].runs[0].method == "entmin"
    rates = {one.row: one for one in made("figure 9", "domainnet")}
    assert rates["EntMin, lr=0.02"].runs[0].parameters["lr"] == 0.02
    assert [one.runs[0].batch for one in made("figure 10", "cifar100c")] == [1, 2, 5, 10, 20, 50, 100]
    ablation = {one.row: one for one in made("figure 5", "cifar100c")}
    assert ablation["w/o DC, single"].runs[0].parameters["consistency"] is False
    assert {one.unit for one in made("table 7", "cifar100c")} == {"s", "MiB"}


def test_quick_runs_and_other_weights_keep_the_papers_parameters():
    exhibit = EXHIBITS["table 9"]
    (run,) = setup(exhibit, "cifar100c", quick=True, model="tiny").plan("ramen")
    assert (run.model, run.preset, run.seed) == ("tiny", "cifar100c_rn101", 0)
    assert run.protocol_parameters["per_domain"] == 67
    assert len(setup(exhibit, "cifar100c", seeds=3).plan("ramen")) == 3


# -- weights and data -------------------------------------------------------------------------------


def test_what_weights_mean(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own/open_clip_config.json").touch()
    (tmp_path / "ViT-B-32.pt").touch()
    name = partial(model_of, "ViT-B-32")
    assert name("openai") == "ViT-B-32/openai"
    assert name(str(tmp_path / "ViT-B-32.pt")) == f"ViT-B-32/{tmp_path}/ViT-B-32.pt"
    assert name(str(tmp_path / "folder")) == f"transformers:{tmp_path}/folder"
    assert name(str(tmp_path / "own")) == f"local-dir:{tmp_path}/own"
    assert name("tiny") == "tiny"


def test_which_weights_are_openais(tmp_path):
    assert reproduce.are_openais("ViT-B-32", "ViT-B-32/openai")
    assert not reproduce.are_openais("ViT-B-32", "ViT-B-16/openai")
    (tmp_path / "ViT-B-32.pt").write_bytes(b"something else")
    assert not reproduce.are_openais("ViT-B-32", f"ViT-B-32/{tmp_path}/ViT-B-32.pt")


def test_data_is_made_of_clean_images_beside_it(tmp_path, monkeypatch):
    clean = tmp_path / "cifar-10-batches-py"
    clean.mkdir()
    rng = np.random.default_rng(0)
    np.save(clean / "images.npy", rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8))
    np.save(clean / "labels.npy", np.arange(10, dtype=np.uint8))
    said = []
    fetch("cifar10c", tmp_path, said.append)
    assert len(said) == 1
    fetch("cifar10c", tmp_path, said.append)  # it is there
    assert len(said) == 1
    (tmp_path / "CIFAR-10-C/fog.npy").unlink()
    with pytest.raises(ValueError, match="fog"):  # nothing is downloaded over what is there
        fetch("cifar10c", tmp_path, said.append)
    with pytest.raises(ValueError, match="DomainNet"):
        fetch("domainnet", tmp_path, said.append)


# -- measured beside reported -----------------------------------------------------------------------


def number(*values, row="Ramen", part=None, **given):
    return Number(row, part, Value(70.0, 0.1), values=values, **given)


def test_the_difference_and_its_interval():
    one = number(71.0, 72.0, 73.0)
    assert one.difference == pytest.approx(2)
    assert one.interval == pytest.approx(2 * math.hypot(1 / math.sqrt(3), 0.1))
    assert one.notable
    assert number(70.1).interval == pytest.approx(2 * math.hypot(0.1, 0.1))
    assert not number(90.0, unit="s").notable
    assert number().difference is None


def test_what_the_tables_show(tmp_path):
    exhibit = EXHIBITS["table 5"]
    found = [
        number(70.1, 70.2, row="near"),
        number(75.0, 75.1, row="far", causes=("other images",)),
        number(70.0, row="dim", reason="quick"),
        number(row="none"),
        number(60.0, 60.0, row="far", part="fog"),
    ]
    main, parts = tables(exhibit, "cifar10c", found)
    rows = {row[0]: row[1:] for row in texts(main)}
    assert rows["near"] == ["%", "70.0 ± 0.1", "70.15 ± 0.07", "+0.15 ± 0.22", "2"]
    assert rows["none"][2:] == ["", "", ""]
    assert [row[4].marked for row in main.cells()] == [False, True, False, False]
    assert {row[2].style for row in main.cells()} == {"aside"}  # dim, and a note says why
    assert main.notes[0].startswith("1 of 2")
    assert "quick" in main.notes[1]
    assert "other images" in main.notes[2]
    assert texts(parts) == [["far", "-10.0"]]
    draw(tmp_path / "figure.png", "title", found)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_what_analyses_measure():
    exhibit = EXHIBITS["table 4"]
    given = setup(exhibit, "cifar100c")
    found = beside(list(exhibit.makes(given)), {}, given)
    shares = tuple(one.reported.mean + 1 for one in found)
    filled = with_analyses(found, given, bins=Bins(6.7, shares, (0.01,) * 10))
    assert [one.difference for one in filled] == pytest.approx([1] * 10)
    assert filled[0].interval == paper.FLOOR
    assert any("11.9" in cause for cause in filled[0].causes)  # the paper contradicts itself
    times = beside(list(EXHIBITS["table 3"].makes(given))[-1:], {}, given)
    (uncached,) = with_analyses(times, given, times=CacheTimes(0.01, 0.02, 400, 500, 10))
    assert uncached.mean == pytest.approx((0.01 + 0.02 * 500) * 150_000)


def test_the_list_says_what_each_takes():
    made = listing(Speed(forward=0.01, backward=0.02, bytes=1e6), 3)
    rows = {(row["exhibit"], row["data"]): row for row in made.records}
    assert len(rows) == 13 + 21
    one = rows["table 6", "domainnet"]
    assert (one["runs"], one["images"]) == (36, 36 * 586_575)
    assert one["hours"] > rows["figure 3", "cifar100c"]["hours"] > 0
    assert one["GiB"] > 0.3


def test_speed_of_a_tower(tmp_path):
    speed = reproduce.measure("cpu", "float32", add_tiny_model(tmp_path, "tiny-for-speed", TINY_VIT))
    assert speed.forward > 0


# -- the command ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_cifar_c(folder / "CIFAR-100-C", count=4, classes=100)
    return folder


def run(root, store, *words):
    given = ["--root", str(root), "--store", str(store), "--weights", "tiny", "--device", "cpu", "--quick"]
    return CliRunner().invoke(app, ["reproduce", *given, *words])


def test_a_table_from_the_archive_to_the_figure(root, tmp_path):
    shown = run(root, tmp_path, "--table", "8", "--json")
    assert shown.exit_code == 0, shown.output
    content = json.loads(shown.stdout)
    assert [one["row"] for one in content["numbers"]] == ["none", "similarity", "entropy", "both", "EntMin"]
    first = content["numbers"][0]
    assert first["reported"]["mean"] == 43.9
    assert 0 <= first["measured"] <= 100
    assert all(why in first["not_comparable"] for why in ("tiny", "per_domain=67"))  # weights, and --quick
    assert first["difference"] == pytest.approx(first["measured"] - 43.9)
    results = sorted(tmp_path.glob("cifar100c/mixed/*.json"))
    assert len(results) == 5
    before = [path.stat().st_mtime_ns for path in results]
    again = run(root, tmp_path, "--table", "8")  # what is finished is not run again
    assert [path.stat().st_mtime_ns for path in results] == before
    assert "Table 8" in again.stdout
    assert (tmp_path / "figures/table-8-cifar100c-quick.png").exists()


def test_analyses_and_the_support(root, tmp_path):
    content = json.loads(run(root, tmp_path, "--figure", "3", "--json").stdout)
    assert len(content["numbers"]) == 1 + 225
    rows = {(one["row"], one["part"]): one["measured"] for one in content["numbers"]}
    shares = [rows["fog", column] for column in paper.CORRUPTIONS]
    assert sum(shares) == pytest.approx(100)
    own = np.mean([rows[domain, domain] for domain in paper.CORRUPTIONS])
    assert rows["same domain", None] == pytest.approx(own)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--table", "1"], "--data"),
        (["--table", "2", "--data", "cifar10c"], "--data"),
        (["--table", "5", "--data", "domainnet"], "--data"),
        (["--table", "5", "--figure", "5"], "--table"),
        (["--figure", "1"], "--figure"),
    ],
)
def test_mistakes(root, tmp_path, words, name):
    shown = run(root, tmp_path, *words)
    assert shown.exit_code == 2
    assert name in shown.output
