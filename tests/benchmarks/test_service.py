"""The benchmark of the service: each check in a small form, and what they measure with."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from ramen.serve.engine import computing
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


# -- load -----------------------------------------------------------------------------------------------


class Echo:
    """A server that answers each request after a pause, with a status."""

    def __init__(self, pause: float, status: int = 200) -> None:
        self.pause, self.status = pause, status
        self.requests = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
                self.requests += 1
                await asyncio.sleep(self.pause)
                writer.write(
                    f"HTTP/1.1 {self.status} X\r\nContent-Length: 2\r\nRetry-After: 1\r\n\r\nhi".encode()
                )
        except asyncio.IncompleteReadError:
            writer.close()


def loaded(server: Echo, **plan: object):
    async def run():
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        connection = check("http_connection")
        address = connection.Address(listening.sockets[0].getsockname()[1])
        request = connection.prepare("POST", "/", b"body", images=3)
        found = await check("load").load(check("load").LoadPlan(address, (request,), **plan))
        listening.close()
        return found

    return asyncio.run(run())


def test_clients_of_a_closed_loop_wait_for_their_answers(benchmark: ModuleType) -> None:
    server = Echo(0.05)
    outcomes = loaded(server, seconds=0.3, clients=2)
    assert 2 <= len(outcomes) == server.requests <= 2 * 7
    assert all(one.status == 200 and one.images == 3 and one.latency >= 0.05 for one in outcomes)


def test_an_open_loop_does_not_wait(benchmark: ModuleType) -> None:
    """40 requests are due while the first one is still being answered."""
    outcomes = loaded(Echo(1.0, 429), seconds=0.2, clients=100, rate=200)
    assert 10 <= len(outcomes) <= 40
    assert max(one.sent for one in outcomes) < min(one.ended for one in outcomes)
    found = check("load").summary(outcomes)
    assert (found["answered_share"], found["refused_share"], found["failed"]) == (0, 1, 0)
    assert found["refusal_p99_ms"] >= 1000
    assert check("load").most_outstanding(outcomes) == len(outcomes)


def test_processes_of_an_open_loop_take_turns(benchmark: ModuleType) -> None:
    """Four processes at 10 requests a second: one is due every 0.1 s, not four every 0.4 s."""
    load, http = check("load"), check("http_connection")
    plan = load.LoadPlan(http.Address(1), (http.prepare("GET", "/"),), 1.0, 8, 10.0)
    shares = load._shares(plan, 4, 100.0)
    due = sorted(one.start + number / one.rate for one in shares for number in range(3))
    np.testing.assert_allclose(np.diff(due), 0.1)
    assert [one.clients for one in shares] == [2] * 4
    closed = load._shares(load.replace(plan, rate=None), 2, 100.0)
    assert [(one.start, one.rate) for one in closed] == [(100.0, None)] * 2


def test_latency_counts_from_when_a_request_was_due(benchmark: ModuleType) -> None:
    """One connection for two requests at once: the second one waits for it."""
    outcomes = loaded(Echo(0.1), seconds=0.02, clients=1, rate=100)
    assert len(outcomes) >= 1
    assert all(one.ended - one.sent >= 0.1 for one in outcomes)
    assert outcomes[-1].latency >= outcomes[-1].ended - outcomes[-1].sent


def test_a_server_that_is_gone_is_an_outcome(benchmark: ModuleType) -> None:
    load, http = check("load"), check("http_connection")
    address = http.Address(check("server_process").free_port())
    (outcome, *_) = asyncio.run(load.load(load.LoadPlan(address, (http.prepare("GET", "/"),), 0.05, 1)))
    assert outcome.status == 0


def test_a_connection_that_the_server_has_closed_is_made_again(benchmark: ModuleType) -> None:
    """Servers close connections that nobody uses for a while: that is no lost request."""
    http = check("http_connection")
    accepted: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def two_requests() -> list[int]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            connection = http.HttpConnection(http.Address(server.sockets[0].getsockname()[1]))
            first = await connection.exchange(http.prepare("GET", "/"))
            await accepted[0].wait_closed()
            second = await connection.exchange(http.prepare("GET", "/"))
            connection.close()
            return [first.status, second.status]

    assert asyncio.run(two_requests()) == [200, 200]
    assert len(accepted) == 2


def test_rates_and_percentiles_of_given_outcomes(benchmark: ModuleType) -> None:
    load = check("load")
    outcomes = [load.Outcome(n, n, n + 0.1 * (n + 1), 200, 5) for n in range(4)]
    outcomes.append(load.Outcome(4.0, 4.0, 4.02, 503, 5))
    found = load.summary(outcomes, warm_up=1.0)
    assert found["requests"] == 4
    assert found["images_per_second"] == 5 * 3 / 3  # those that ended from 1 to 4 s
    assert found["p50_ms"] == pytest.approx(300)
    assert found["refused_share"] == 0.25
    assert found["refusal_p99_ms"] == pytest.approx(20)
    late = load.summary([load.Outcome(0, 0, 2, 200, 6), load.Outcome(0, 0, 3, 200, 6)], warm_up=1.0)
    assert late["images_per_second"] == 12 / 3
    assert load.most_outstanding([load.Outcome(0, 0, 2, 200, 1), load.Outcome(1, 1, 3, 200, 1)]) == 2


def test_slow_requests_are_explained(benchmark: ModuleType) -> None:
    """100 requests in a second: six of these wait for one stall, another one is computed slowly."""
    load, tails = check("load"), check("tails")
    outcomes = [load.Outcome(n / 100, n / 100, n / 100 + 0.03, 200, 1, False, 5.0, 20.0) for n in range(100)]
    for n in range(40, 46):
        outcomes[n] = load.Outcome(n / 100, n / 100, 0.6, 200, 1, False, 120.0, 20.0)
    outcomes[80] = load.Outcome(0.8, 0.81, 0.985, 200, 1, False, 5.0, 155.0)
    outcomes.append(load.Outcome(0.5, 0.5, 9.0, 429, 1))
    found = tails.tail(outcomes)
    assert (found["requests"], found["groups"]) == (5, 2)
    assert found["others"] == {
        "latency_ms": 30, "client_ms": 0, "queued_ms": 5, "computed_ms": 20, "rest_ms": 5
    }  # fmt: skip
    assert found["slow"]["queued_ms"] == 120
    assert found["largest_groups"][0] == {"at_s": 0.4, "requests": 4, "slowest_ms": 200}
    assert found["slowest"][0] == {
        "at_s": 0.4, "latency_ms": 200, "client_ms": 0, "queued_ms": 120, "computed_ms": 20, "rest_ms": 60
    }  # fmt: skip
    assert [one["client_ms"] for one in found["slowest"] if one["at_s"] == 0.8] == [10]
    assert tails.tail(outcomes, warm_up=0.7)["slowest"][0]["at_s"] == 0.8
    assert tails.tail([load.Outcome(0, 0, 1, 200, 1)])["slowest"][0]["rest_ms"] is None
    assert tails.tail(outcomes[-1:]) == {"requests": 0}


# -- what the checks compare with -------------------------------------------------------------------------


def test_logits_are_compared_up_to_a_constant(benchmark: ModuleType) -> None:
    def answer(logits: list[float], label: str):
        values = np.exp(np.array(logits, dtype=np.float64))
        probabilities = (values / values.sum()).astype(np.float32)
        return SimpleNamespace(probabilities=probabilities, result=SimpleNamespace(label=label, error=None))

    first = [answer([1, 2, 3], "c"), answer([0, 0, 1], "c")]
    second = [answer([11, 12, 13], "c"), answer([0, 0.3, 1], "b")]
    seen = check("logits").difference(first, second)
    assert (seen.compared, seen.labels) == (2, 1)
    assert seen.logits == pytest.approx(0.2, abs=1e-5)  # centred: -1/3, -1/3, 2/3 beside -0.43, -0.13, 0.57
    assert check("logits").difference(first, first).bits == 0


def test_rows_that_are_missed_are_named(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = check("report").Findings("R0")
    found.expect_zero("good", 0, 3)
    found.expect_zero("bad", 2, 3)
    found.expect_at_most("not a number", float("nan"), 1.0, "s")
    found.expect_at_least("much", 2.0, 1.0, "")
    found.note("only said", "so")
    assert [row.passed for row in found.rows] == [True, False, False, True, None]
    assert [row.what for row in check("report").missed([found])] == ["bad", "not a number"]
    check("report").print_findings(found, "title", benchmark.Console(width=120))
    shown = capsys.readouterr().out
    assert shown.count("missed") == 2
    assert "2 of 3" in shown


def test_lost_images_are_compared_with_the_promise(benchmark: ModuleType) -> None:
    crashes, one = check("crashes"), check("sequences").ImageSequence("s", np.zeros((1, 1, 1, 3), np.uint8))
    one.resumed = [10]
    one.received = [(0.0, 4), (5.0, 12), (6.0, 15), (6.9, 16)]
    assert crashes._promise(one, 1, "batch", 7.0) == (15, 16)
    assert crashes._promise(one, 1, "1s", 7.0) == (12, 16)
    tally = crashes._Tally()
    one.resumed.append(14)
    crashes._compare_with_promise([one], {"s": (15, 16)}, "batch", tally)
    assert (tally.losses["batch"], tally.beyond_promise, tally.invented) == ([2], 1, 0)
    one.resumed.append(20)
    crashes._compare_with_promise([one], {"s": (15, 16)}, "batch", tally)
    assert (tally.losses["batch"], tally.beyond_promise, tally.invented) == ([2, 0], 1, 1)


# -- checks that need no server ---------------------------------------------------------------------------


def test_images_alone_and_in_a_batch(options) -> None:
    assert failed(check("batches").run(options, trials=2, others=3, warm_up=8)) == []


def test_an_image_that_depends_on_its_batch_is_found(options, monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier that adds the mean of the batch to each embedding."""
    encoder = type(options.classifier.encoder)
    plain = encoder.__call__

    def mixed(self, images, *rest, **named):
        found = plain(self, images, *rest, **named)
        return found + 0.5 * found.mean(0)

    monkeypatch.setattr(encoder, "__call__", mixed)
    # as on a GPU; on a CPU each image passes alone, and nothing can depend on others
    monkeypatch.setattr(
        computing, "_batch_sizes", lambda settings, _: (settings.max_batch,) if settings.invariant else ()
    )
    missed = failed(check("batches").run(options, trials=2, others=3, warm_up=8))
    assert any("difference of logits" in row for row in missed)
    assert any("another bit" in row for row in missed)


def test_steps_that_fail(options) -> None:
    found = check("failing").run(options, requests=12)
    assert failed(found) == []
    assert found.rows[0].value > 0  # some did


def test_tenants(options) -> None:
    missed = failed(check("tenants").run(options, images=12))
    assert [row for row in missed if "not invariant: difference of logits:" not in row] == []


def test_signs_that_differ_are_found(options, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that depends on how many images there are: one coordinate goes the other way beside others."""
    flips = check("sign_flips").count_sign_flips(options, 4)
    assert len(flips.flipped) == len(flips.apart) == 4
    sharing = check("sign_flips")
    plain = sharing.predict_together
    ramen_class = sharing.Ramen
    step = ramen_class.step
    beside = [False]

    def together(parts):
        beside[0] = len(parts) > 1
        return plain(parts)

    def flipped(self, first, usable):
        own = step(self, first, usable)
        if beside[0]:
            base = self.classifier.encoder.base
            own.affine[:, 7] = 2 * base[7] - own.affine[:, 7] + 1e-3
        return own

    monkeypatch.setattr(sharing, "predict_together", together)
    monkeypatch.setattr(ramen_class, "step", flipped)
    found = sharing.count_sign_flips(options, 4)
    assert min(found.flipped) >= 1
    assert found.largest(flipped=True) > 0
    assert found.largest(flipped=False) == 0


def test_costs_are_those_of_a_batch(options, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = check("costs")
    found = {row.what: row.value for row in costs.run(options, repeats=2).rows}
    assert len(found) == 6  # requests of 1 and 8, those with files, and one that is refused
    assert all(value > 0 for value in found.values())
    spent = iter([0.0, 5.0, 10.0, 12.0])
    monkeypatch.setattr(costs.time, "process_time", lambda: next(spent))
    assert costs._cpu_ms(lambda: None, 2) == 2000


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

    for name in ("concurrency", "hostile", "overload", "soak", "profiles", "memory"):
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
    assert not any("profile" in row for row in speed.details.values())
    assert all(row["half_load_tail"]["requests"] > 0 for row in speed.details.values())
    memory = check("memory")._grown(options, images=50, warm_up=10, module="ramen")
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
    assert results["hardware"]["cores"] > 0


def test_a_server_that_does_not_start_says_why(benchmark: ModuleType, tmp_path: Path) -> None:
    process = check("server_process")
    command = [sys.executable, "-c", "raise SystemExit('no model')"]
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="no model"):
        process.ServerProcess(command, process.free_port(), tmp_path / "log")
    assert time.monotonic() - start < 60
