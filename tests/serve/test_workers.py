"""Workers: the same answers, and a process that dies costs its own requests alone."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

import ramen
from ramen import testing
from ramen.client.operations import GetStream
from ramen.serve.engine.engine import Engine
from ramen.serve.http.server import bind, url_of
from ramen.serve.settings import EngineSettings, HttpSettings
from ramen.serve.workers import Workers, WorkersFailedError, limits_of_each
from tests.fakes.failing_worker import EXIT_CODE, fail
from tests.helpers.photos import encoded, photo
from tests.helpers.running_server import PATIENCE, wait_until
from tests.helpers.sent_images import pixels, sent
from tests.serve.engine.engines import engine, loop_engine, on_its_loop

WORKERS = 2
PARAMETERS = {"capacity": 6, "topk": 2, "beta": 5.0, "lr": 1e-2, "codec": "sign"}
SETTINGS = HttpSettings(max_body_bytes=2**21, max_bodies_bytes=2**23)
PIXELS = {"Content-Type": "application/x-ramen-uint8"}


class Service:
    """An engine in this process, with its workers."""

    def __init__(self, engine: Engine, url: str, workers: Workers) -> None:
        self.engine, self.url, self.workers = engine, url, workers

    def classify(self, client: httpx.Client, stream: str, *seeds: int) -> httpx.Response:
        body = np.stack([pixels(seed) for seed in seeds])
        headers = PIXELS | {"X-Shape": ",".join(map(str, body.shape))}
        return client.post(f"/v1/streams/{stream}/classify", content=body.tobytes(), headers=headers)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE)

    @property
    def pids(self) -> list[int]:
        return self.workers.pids

    @property
    def connections(self) -> list[int]:
        return self.workers._connections.bytes_at(0, 8 * WORKERS).view(np.int64).tolist()


@pytest.fixture(scope="module")
def clf() -> ramen.ZeroShotClassifier:
    return testing.small_classifier()


@contextmanager
def service(clf: ramen.ZeroShotClassifier, **settings: object) -> Iterator[Service]:
    failed: list[BaseException] = []
    chosen = EngineSettings(**{"max_batch": 128, "max_delay_ms": 1.0, **settings})
    listening = threading.Event()
    answering = Engine(clf, chosen, parameters=PARAMETERS)
    with bind("127.0.0.1", 0) as bound:
        url = url_of(bound)
        workers = Workers(answering, SETTINGS, WORKERS, bound, "json")
        loop = asyncio.new_event_loop()

        def run() -> None:
            try:
                loop.run_until_complete(workers.run(listening.set))
                loop.run_until_complete(answering.close())
            except BaseException as error:
                failed.append(error)
                listening.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert listening.wait(PATIENCE)
        assert not failed
        made = Service(answering, url, workers)
        pids = made.pids
        try:
            yield made
        finally:
            loop.call_soon_threadsafe(workers.stop)
            thread.join(PATIENCE)
            assert not thread.is_alive()
            assert not failed
            assert not any(_lives(pid) for pid in {*pids, *made.pids})
            loop.close()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def shared(clf) -> Iterator[Service]:
    with service(clf) as made:
        yield made


def test_answers_are_those_of_the_engine(clf, shared: Service) -> None:
    """Whichever worker is asked, with bodies that are large, small, or files to decode."""
    with engine(clf, max_batch=128) as alone, ExitStack() as stack:
        clients = [stack.enter_context(shared.client()) for _ in range(2 * WORKERS)]
        for number, seeds in enumerate(((1,), (2, 3, 4), range(5, 125), (200,), range(130, 250))):
            expected = alone.submit("a", sent(*seeds)).future.result(PATIENCE)
            response = shared.classify(clients[number % len(clients)], "a", *seeds).raise_for_status()
            answers = response.json()["answers"]
            assert [one["label"] for one in answers] == [one.result.label for one in expected]
            assert [one["probability"] for one in answers] == [one.result.probability for one in expected]
            assert [one["state_version"] for one in answers] == [one.result.state_version for one in expected]
        files = {"files": ("a.png", encoded(Image.fromarray(pixels(7)), "PNG"))}
        (answer,) = clients[0].post("/v1/streams/a/classify", files=files).json()["answers"]
        (only,) = alone.submit("a", sent(7)).future.result(PATIENCE)
        assert answer["probability"] == only.result.probability


def test_connections_are_shared_out(shared: Service) -> None:
    wait_until(lambda: sum(shared.connections) == 0)
    with ExitStack() as stack:
        clients = [stack.enter_context(shared.client()) for _ in range(4 * WORKERS)]
        for client in clients:
            client.get("/healthz")
        wait_until(lambda: sum(shared.connections) == len(clients))
        assert max(shared.connections) - min(shared.connections) <= 2


def test_figures_are_those_of_all_workers(shared: Service) -> None:
    def counted() -> float:
        with shared.client() as client:
            page = client.get("/metrics").text
        name = 'ramen_http_requests_total{method="GET",route="/readyz",status="200"}'
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))

    before = counted()
    with ExitStack() as stack:
        clients = [stack.enter_context(shared.client()) for _ in range(2 * WORKERS)]
        for client in clients:
            assert client.get("/readyz").status_code == 200
    wait_until(lambda: counted() == before + len(clients))


def test_a_process_that_dies_is_replaced(clf) -> None:
    with service(clf) as made, made.client() as first:
        assert made.classify(first, "a", 1).status_code == 200
        victim = made.pids[int(np.argmax(made.connections))]
        os.kill(victim, signal.SIGKILL)
        answered = 0
        for seed in range(2, 12):  # others go on meanwhile
            try:
                with made.client() as client:
                    answered += made.classify(client, "a", seed).status_code == 200
            except httpx.TransportError:
                continue  # it was on its way to the dead one
        assert answered >= 8
        wait_until(lambda: victim not in made.pids and len(made.pids) == WORKERS)
        wait_until(lambda: all(connection is not None for connection in made.workers._now))
        with ExitStack() as stack:
            clients = [stack.enter_context(made.client()) for _ in range(2 * WORKERS)]
            for client in clients:
                assert made.classify(client, "a", 20).status_code == 200
        assert on_its_loop(made.engine, GetStream("a")).images >= answered + 1 + len(clients)
        assert '"ramen_http_requests' not in first.get("/metrics").text


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_decoder_that_dies_costs_one_image(shared: Service) -> None:
    """Also while it is doing nothing; the next images are decoded again."""
    files = [("files", (str(n), encoded(photo(n, (300, 200)), "JPEG"))) for n in range(20)]
    with shared.client() as client:
        for _ in range(3):
            decoders = [one for pid in shared.pids for child in _children(pid) for one in _children(child)]
            assert decoders
            for decoder in decoders:
                os.kill(decoder, signal.SIGKILL)
            answers = client.post("/v1/streams/b/classify", files=files).raise_for_status().json()["answers"]
            assert sum(one["error"] is not None for one in answers) <= 2  # a worker has two decoders


def test_what_was_accepted_is_answered_at_the_end(clf, monkeypatch) -> None:
    computing, go_on = threading.Event(), threading.Event()
    answers: list[httpx.Response] = []
    with service(clf) as made:
        begin = made.engine._computing._begin

        def slowly(*args):
            computing.set()
            go_on.wait(PATIENCE)
            return begin(*args)

        monkeypatch.setattr(made.engine._computing, "_begin", slowly)

        def ask() -> None:
            with made.client() as client:
                answers.append(made.classify(client, "a", 1))

        asking = threading.Thread(target=ask)
        asking.start()
        assert computing.wait(PATIENCE)
        threading.Timer(0.5, go_on.set).start()
    asking.join(PATIENCE)
    assert answers[0].status_code == 200


def test_processes_that_cannot_work_end_the_service(clf, monkeypatch) -> None:
    monkeypatch.setattr("ramen.serve.workers._LONGEST_PAUSE", 0.01)
    monkeypatch.setattr("ramen.serve.workers._SHORT_LIVES", 2)
    monkeypatch.setattr("ramen.serve.workers.run_worker", fail)
    made = loop_engine(clf)

    async def run() -> None:
        try:
            await workers.run(lambda: None)
        finally:
            await made.close()

    with bind("127.0.0.1", 0) as bound:
        workers = Workers(made, SETTINGS, 1, bound, "json")
        with pytest.raises(ExceptionGroup) as caught:
            asyncio.run(run())
    assert caught.group_contains(WorkersFailedError, match=f"exit code {EXIT_CODE}")


def test_limits_are_shared_out() -> None:
    settings = HttpSettings(max_body_bytes=100, max_bodies_bytes=1000, max_listeners=5)
    each = limits_of_each(settings, 4)
    assert (each.max_body_bytes, each.max_bodies_bytes, each.max_listeners) == (100, 250, 2)
    assert limits_of_each(settings, 100).max_bodies_bytes == 100
