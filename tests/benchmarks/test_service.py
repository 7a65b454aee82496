"""The benchmark of the service: each check in a small form, and what they measure with."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.benchmark_scripts import load_benchmark
from tests.helpers.slow_tests import RUN_SLOW_TESTS

pytest.importorskip("fastapi")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="need Linux")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend("benchmarks")
    return load_benchmark("service")


@pytest.fixture
def options(benchmark: ModuleType, tmp_path: Path):
    return benchmark.CheckOptions(tmp_path, max_batch=8, seconds=1.0)


def check(name: str):
    """The module of a check."""
    import importlib

    return importlib.import_module(f"service_checks.{name}")


def failed(found) -> list[str]:
    return [f"{row.what}: {row.measured}, target {row.target}" for row in found.rows if row.passed is False]


# -- checks that need no server ---------------------------------------------------------------------------


def test_images_alone_and_in_a_batch(options) -> None:
    assert failed(check("batches").run(options, trials=2, others=3, warm_up=8)) == []


def test_steps_that_fail(options) -> None:
    found = check("failing").run(options, requests=12)
    assert failed(found) == []
    assert found.rows[0].value > 0  # some did


def test_tenants(options) -> None:
    missed = failed(check("tenants").run(options, images=12))
    assert [row for row in missed if "not invariant: difference of logits:" not in row] == []


# -- checks with a server ---------------------------------------------------------------------------------


@pytest.fixture
def server(options) -> Iterator[object]:
    """One server for the checks that do not restart it."""
    with check("server_process").ramen_server(options, queue_images=64) as started:
        yield started
        started.kill()


def test_checks_of_one_server(options, server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several on the same server: a start takes longer than all of them."""

    class Shared:
        def __enter__(self):
            return server

        def __exit__(self, *_):
            return None

    for name in ("concurrency", "hostile", "overload", "soak", "speed", "memory"):
        monkeypatch.setattr(check(name), "ramen_server", lambda *_, **__: Shared())
    monkeypatch.setattr(check("overload"), "_QUEUED_BATCHES", 8)
    assert failed(check("concurrency").run(options, threads=6, requests=3)) == []
    hostile = check("hostile").run(options, mutations=10)
    assert [row for row in failed(hostile) if "ms" not in row and "MB" not in row] == []
    overload = {row.what: row for row in check("overload").run(options, seconds=1.0, calm=0.5).rows}
    assert overload["the server"].passed
    assert next(row for what, row in overload.items() if what.startswith("the longest queue")).passed
    assert overload["refusals without Retry-After"].passed
    soak = check("soak").run(options, seconds=1.0)
    assert next(row for row in soak.rows if row.what == "answers other than 200").passed
    speed = check("speed").run(options, seconds=0.3)
    assert all(row["http_images_per_second"] > 0 for row in speed.details.values())
    assert all(row["not_answered"] == 0 for row in speed.details.values())
    assert all(row["half_load_tail"]["requests"] > 0 for row in speed.details.values())
    memory = check("memory").grown(options, images=50, warm_up=10)
    assert memory["images"] >= 50
    assert memory["before_mib"] > 50


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="RAMEN_SLOW_TESTS=1 starts three servers")
def test_a_server_is_killed_and_comes_back(options) -> None:
    """The first start is killed; the second one has what was promised, and answers as one never killed."""
    found = check("crashes").run(options, kills=1, longest=0.3)
    assert [row for row in failed(found) if not row.startswith("the same with a state")] == []
    assert next(row for row in found.rows if "never killed" in row.what).value == 0


def test_the_command(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it writes, and that a check that cannot run is a target that is missed."""
    report, out = check("report"), tmp_path / "service.json"

    def good(options):
        found = report.Findings("R5")
        found.expect_at_most("time", 0.5, 1.0, "s")
        found.details["seen"] = float("nan")
        return found

    def broken(options):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(check("batches"), "run", good)
    monkeypatch.setattr(check("soak"), "run", broken)
    monkeypatch.setattr(sys, "argv", ["service", "--checks", "R5", "R16", "--strict", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == 1
    results = json.loads(out.read_text())
    assert results["missed"] == 1
    assert results["checks"]["R5"]["rows"][0]["passed"] is True
    assert results["checks"]["R5"]["details"]["seen"] is None
    assert results["checks"]["R16"]["rows"][0]["measured"] == "RuntimeError: no such thing"
    assert "1 of 2 targets met" in capsys.readouterr().out
    assert results["cores"] > 0


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="slow; RAMEN_SLOW_TESTS=1 runs them")
def test_the_host_beside_a_stand_in_for_a_gpu(options) -> None:
    """All kinds of requests in short, with one worker; this checkout stands for the old one too."""
    options = replace(options, old=Path(__file__).parents[2])
    found = check("host").run(options, turns=2)
    limited = [row for row in found.rows if row.passed is not None]
    assert [row.what.partition(":")[0] for row in limited] == list(check("host").kinds())
    assert all(0.2 < row.value < 5 for row in limited)  # the same code, in half a second a turn
    for spent in found.details.values():
        assert set(spent) == {"old", "new"}
        assert all(one["rate"] > 0 and one["engine"] > 0 for one in spent.values())
