"""The command for all that is owed from a GPU: rehearsed on a CPU, resumed, and never twice."""

import json
import subprocess
import sys

import pytest

from tests.helpers.benchmark_scripts import load_benchmark
from tests.helpers.slow_tests import RUN_SLOW_TESTS


@pytest.fixture
def gpu():
    return load_benchmark("gpu")


@pytest.fixture
def checkouts(tmp_path):
    """Two folders without a history, whose benchmark says where its code is from."""
    script = (
        "import json, pathlib, sys\n"
        "import measured\n"
        "count = pathlib.Path(__file__).with_name('count')\n"
        "count.write_text(count.read_text() + 'x' if count.exists() else 'x')\n"
        "if len(count.read_text()) in measured.FAILS: sys.exit('broken')\n"
        "out = {'rows': [{'what': 'a step', 'milliseconds': measured.SPENT / len(count.read_text())}]}\n"
        "pathlib.Path(sys.argv[1]).write_text(json.dumps(out))\n"
    )
    found = {}
    for side, spent in (("old", 8.0), ("new", 6.0)):
        folder = tmp_path / side
        (folder / "src").mkdir(parents=True)
        (folder / "benchmarks").mkdir()
        (folder / "benchmarks/steps.py").write_text(script)
        (folder / "src/measured.py").write_text(f"SPENT, FAILS = {spent}, ()\n")
        found[side] = folder
    return found


def test_every_piece_is_rehearsed(tmp_path):
    """All of them in the long run of tests, else the shortest one."""
    words = ["--rehearse", "--device", "cpu", "--out", str(tmp_path), "--minutes", "30", "--old", "."]
    words += [] if RUN_SLOW_TESTS else ["--piece", "cost"]
    subprocess.run([sys.executable, "benchmarks/gpu.py", *words], check=True, timeout=1800)
    pieces = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert pieces.keys() >= {"cost"}
    for piece in pieces.values():
        sides = [run["side"] for run in piece["runs"]]
        assert sides in (["old", "new"], ["new"])
        assert piece["machine"]["versions"]["torch"]
        assert {"sha256"} <= piece["commits"]["new"].keys()


def test_sides_take_turns_and_nothing_is_measured_twice(gpu, checkouts, tmp_path, capsys):
    def invoke(**changes):
        options = {"turns": 2, "seconds": 600.0} | changes
        bench = gpu.Bench(checkouts, tmp_path, options["turns"], {}, options["seconds"])
        bench.run("steps", {"one": gpu.Step("benchmarks/steps.py {out}")})
        kept = json.loads((tmp_path / "steps.json").read_text())
        return [(run["turn"], run["side"]) for run in kept["runs"]], bench.owed

    both = [(0, "old"), (0, "new")]
    assert invoke(turns=1) == (both, [])
    assert invoke(seconds=0.0) == (both, ["steps/one/new", "steps/one/old"])  # no time for another turn
    all_turns = [*both, (1, "new"), (1, "old")]
    assert invoke() == invoke() == (all_turns, [])
    assert (checkouts["new"] / "benchmarks/count").read_text() == "xx"
    printed = capsys.readouterr().out.splitlines()[-1]
    assert "4.000 ->     3.000 ms  0.750" in printed  # of both turns the faster one
    (checkouts["new"] / "src/measured.py").write_text("SPENT, FAILS = 5.0, (3,)\n")
    assert invoke() == ([*all_turns, (1, "new")], ["steps/one/new"])  # other code; its first run failed
    assert invoke() == ([*all_turns, (1, "new"), (0, "new")], [])


def test_a_command_that_is_wrong_says_what_is_expected(gpu, monkeypatch, capsys):
    for words, named in ((["--piece", "sped", "--old", "."], "--piece"), ([], "--old")):
        monkeypatch.setattr("sys.argv", ["gpu.py", *words])
        with pytest.raises(SystemExit):
            gpu.main()
        assert named in capsys.readouterr().err
