"""What Ray alone has: a config file, its proxy, and errors of its own."""

import asyncio
import base64
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from PIL import Image
from pydantic import ValidationError
from typer.testing import CliRunner

pytest.importorskip("ray", reason="need ray: pip install 'ramen-tta[ray]'")

from ray import serve
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.schema import ServeDeploySchema

from ramen.cli import app
from ramen.client import operations as errors
from ramen.data.drawings.shapes import OBJECTS
from ramen.serve.http.auth import create_token
from ramen.serve.on_ray import RayServeArguments, RayShard, Scaling, application, build
from tests.helpers.calls import does
from tests.helpers.sent_images import pixels, sent
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.serve.services.conftest import PATIENCE, Served

pytestmark = pytest.mark.xdist_group("ray")
CONFIG = Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml"
NEVER = object()


# -- what Ray says, without its processes -----------------------------------------------------------


class FakeHandle:
    """A deployment: what each call is answered with is decided beforehand, the last one for all that follow.

    Attributes:
        sent: The operations.
        cancelled: How many calls were.
    """

    def __init__(self, *outcomes: Any, choosing: Any = None) -> None:
        self._outcomes, self._choosing = list(outcomes), choosing
        self.sent: list[Any] = []
        self.cancelled = 0

    def options(self, **options: Any) -> "FakeHandle":
        return self

    def choose_replica(self) -> "FakeHandle":
        return self

    async def __aenter__(self) -> None:
        await self._happen(self._choosing)

    async def __aexit__(self, *error: object) -> None:
        pass

    def dispatch(self, chosen: Any, operation: Any) -> Any:
        self.sent.append(operation)
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        work = self._happen(outcome)
        return _Response(self, work)

    async def _happen(self, outcome: Any) -> Any:
        if outcome is NEVER:
            await asyncio.Event().wait()
        if isinstance(outcome, Exception) and not isinstance(outcome, errors.ServerError):
            raise outcome
        return outcome


class _Response:
    def __init__(self, handle: FakeHandle, work: Any) -> None:
        self._handle, self._work = handle, work

    def __await__(self) -> Any:
        return self._work.__await__()

    def cancel(self) -> None:
        self._handle.cancelled += 1


def classify(handle: FakeHandle, timeout: float = PATIENCE) -> Any:
    return asyncio.run(does(RayShard(handle)).classify("a", sent(1), timeout=timeout))


LOST = errors.AnswerLostError
GONE = ReplicaUnavailableError("r1")


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        (errors.ServerOverloadedError("full", 3.5), errors.ServerOverloadedError),
        (errors.DeadlineExceededError("late"), errors.DeadlineExceededError),
        (errors.InvalidRequestError("odd"), errors.InvalidRequestError),
        (ActorDiedError(), LOST),
        (ActorUnavailableError("gone", None), LOST),
        (RayTaskError("call", "a traceback with secrets", ValueError("secret")), errors.FailedError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_was_sent_once_is_not_sent_again(said: Exception, raised: type[Exception]) -> None:
    handle = FakeHandle(said, "never asked for")
    with pytest.raises(raised) as caught:
        classify(handle)
    assert len(handle.sent) == 1
    assert "secret" not in str(caught.value)
    if isinstance(said, errors.ServerError):
        assert caught.value is said


@pytest.mark.parametrize("first", [GONE, errors.StoppingError("stopping")], ids=["gone", "stopping"])
def test_what_was_not_taken_is_sent_again(first: Exception) -> None:
    handle = FakeHandle(first, ["answer"])
    assert classify(handle) == ["answer"]
    assert len(handle.sent) == 2
    assert all(0 < operation.timeout <= PATIENCE for operation in handle.sent)


@pytest.mark.parametrize("choosing", [DeploymentUnavailableError(None), NEVER], ids=["failed", "waiting"])
def test_a_stream_waits_for_its_engine_as_long_as_there_is_time(choosing: Any) -> None:
    handle = FakeHandle("never asked for", choosing=choosing)
    with pytest.raises(errors.ServerUnavailableError, match="nothing was learned") as caught:
        classify(handle, timeout=0.1)
    assert caught.value.retry_after > 0
    with pytest.raises(errors.DeadlineExceededError):
        classify(handle, timeout=0.0)
    assert not handle.sent


def test_rays_own_limit_is_an_overload() -> None:
    with pytest.raises(errors.ServerOverloadedError) as caught:
        classify(FakeHandle("never", choosing=BackPressureError(5, 4, retry_after_s=2.5)))
    assert caught.value.retry_after == 2.5


def test_a_cancelled_caller_cancels_the_request() -> None:
    handle = FakeHandle(NEVER)

    async def give_up() -> None:
        task = asyncio.create_task(does(RayShard(handle)).classify("a", sent(1)))
        while not handle.sent:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert handle.cancelled == 1


# -- the config file and the command ----------------------------------------------------------------


def test_the_config_file_is_accepted_by_ray_and_by_the_application(tmp_path: Path) -> None:
    config = ServeDeploySchema.model_validate(yaml.safe_load(CONFIG.read_text()))
    (deployed,) = config.applications
    module, _, function = deployed.import_path.partition(":")
    assert getattr(importlib.import_module(module), function) is build
    arguments = RayServeArguments.model_validate(deployed.args)
    assert arguments.scaling == Scaling(replicas=4, gpus_per_replica=1, cpus_per_replica=4)
    (tmp_path / "classes.txt").write_text("cat\n\n dog \n")
    create_token(tmp_path / "tokens.json", "all", ["classify"])
    here = {"classes_file": tmp_path / "classes.txt", "tokens": tmp_path / "tokens.json"}
    request = arguments.model_copy(update=here).request()
    assert request.classes == ("cat", "dog")
    assert request.model == "ViT-B-16/openai"
    assert request.http.tokens == tmp_path / "tokens.json"
    assert (request.engine.state, request.engine.max_batch) == ("/shared/ramen/state", 100)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"modle": "tiny"}, "modle"),
        ({"engine": {"maxbatch": 3}}, "maxbatch"),
        ({"engine": {"max_batch": "many"}}, "engine.max_batch"),
        ({"scaling": {"replica": 3}}, "replica"),
        ({"scaling": {"replicas": 0}}, "replicas"),
        ({"scaling": {"min_replicas": 1, "max_replicas": 2}}, "give replicas"),
        ({"scaling": {"gpus_per_replica": -1}}, "gpus_per_replica"),
        ({"scaling": {"ingress_replicas": 0}}, "ingress_replicas"),
        ({"http": {"port": 3}}, "port"),
    ],
)
def test_wrong_arguments_are_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        RayServeArguments.model_validate(given)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    alone = RayServeArguments(no_auth=True)
    assert alone.request().classes == tuple(OBJECTS)
    assert build(alone) is not None
    for given in ({"model": "ViT-B-16/openai"}, {"classes": ["cat"], "classes_file": Path("x")}):
        with pytest.raises(ValueError, match="classes"):
            RayServeArguments(no_auth=True, **given).request()
    with pytest.raises(ValueError, match="who may use"):
        RayServeArguments().request()
    with pytest.raises(ValueError, match="state"):
        application(alone.request(), Scaling(replicas=2))


def refused(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", "--no-auth", *arguments])
    return result.exit_code, " ".join(result.output.replace("│", " ").split())


def test_options_are_refused_with_what_replaces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, said in (
        (("--replicas", "2"), "--replicas needs --ray"),
        (("--gpus-per-replica", "1"), "--gpus-per-replica needs --ray"),
        (("--ray", "--replicas", "2"), "need a state"),
        (("--ray", "--min-replicas", "1", "--max-replicas", "2"), "give replicas in place of"),
    ):
        code, message = refused(*arguments)
        assert code == 2
        assert said in message
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    code, message = refused("--ray")
    assert code == 1
    assert "pip install 'ramen-tta[ray]'" in message


# -- Ray's proxy ------------------------------------------------------------------------------------


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(seed)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("served", ["ray"], indirect=True)
def test_the_http_api_is_served_by_rays_proxy(served: Served, proxy_port: int) -> None:
    before = served.do("statistics").images
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy_port}", timeout=PATIENCE) as client:
        assert client.get("/readyz").json() == {"status": "ready"}
        assert client.get("/v1/model").json()["name"] == "small"
        for learned, stream in ((2, "web-1"), (2, "web-2"), (4, "web-1")):
            images = [{"key": str(n), "data": base64.b64encode(png(n)).decode()} for n in (1, 2)]
            reply = client.post(f"/v1/streams/{stream}/classify", json={"images": images})
            assert reply.status_code == 200
            assert [one["key"] for one in reply.json()["answers"]] == ["1", "2"]
            assert client.get(f"/v1/streams/{stream}").json()["images"] == learned
        assert client.get("/v1/streams/nobody").status_code == 404
        assert client.post("/v1/streams/web-1/classify", content=b"x").status_code == 415
        assert f"ramen_images_total {before + 6}.0" in client.get("/metrics").text
        with client.stream("GET", "/v1/events") as events:
            lines = events.iter_lines()
            assert json.loads(next(line for line in lines if line.startswith("data:"))[5:])["images"] > 0


def test_a_config_files_application_serves_the_tiny_model_to_those_with_a_token(
    proxy_port: int, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    token = create_token(tokens, "camera", ["classify"], ["camera-*"])
    arguments = RayServeArguments(
        tokens=tokens,
        engine={"state": str(tmp_path / "state"), "max_batch": 4},
        scaling={"replicas": 1, "cpus_per_replica": 0.5},
    )
    serve.run(build(arguments), name="tiny", route_prefix="/tiny")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{proxy_port}/tiny", timeout=PATIENCE) as client:
            path, sending = "/v1/streams/camera-1/classify", {"Content-Type": "image/png"}
            assert client.post(path, content=png(1), headers=sending).status_code == 401
            sending["Authorization"] = f"Bearer {token}"
            reply = client.post(path, content=png(1), headers=sending)
            assert reply.status_code == 200
            assert reply.json()["answers"][0]["label"] in OBJECTS
            other = client.post("/v1/streams/other/classify", content=png(1), headers=sending)
            assert other.status_code == 403
    finally:
        serve.delete("tiny")


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="starts another Ray: make test-all")
def test_the_command_continues_when_it_is_started_again_with_other_replicas(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ramen", "serve", "--ray", "--no-auth", "--port", "0"]
    for learned, replicas in ((0, "2"), (3, "3")):
        with subprocess.Popen(
            [*command, "--state", "state", "--replicas", replicas],
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "log").open("ab"),
            text=True,
            cwd=tmp_path,
            env={**os.environ, "RAMEN_SLOW_TESTS": ""},
        ) as process:
            assert process.stdout is not None
            url = next(line for line in process.stdout if line.startswith("serving")).split()[-1]
            headers = {"Content-Type": "application/x-ramen-uint8", "X-Shape": "1,32,32,3"}
            with httpx.Client(base_url=url, timeout=PATIENCE) as client:
                for seed in range(3):
                    body = pixels(seed).tobytes()
                    reply = client.post("/v1/streams/a/classify", content=body, headers=headers)
                    assert reply.status_code == 200
                    assert reply.json()["answers"][0]["state_version"] == learned + seed + 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
