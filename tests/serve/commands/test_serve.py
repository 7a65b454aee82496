"""``ramen serve``: the tiny model answers, learns, stops, and resumes; mistakes are found at once."""

import re
import signal
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch
from typer.testing import CliRunner

from ramen.cli import app
from ramen.serve.command import make_request
from ramen.serve.http.auth import create_token
from ramen.serve.http.server import bind
from tests.helpers.classify_process import ClassifyProcess
from tests.helpers.drawing_files import CLASSES, write_drawings

OPTIONS = ("--port", 0, "--classes", ",".join(CLASSES), "--device", "cpu")


def started(folder: Path, *options: object) -> ClassifyProcess:
    folder.mkdir(exist_ok=True)
    return ClassifyProcess((*OPTIONS, *options), folder, command="serve")


def client_of(process: ClassifyProcess, token: str | None = None) -> httpx.Client:
    process.wait_for(lambda: process.stdout.endswith("\n"))
    url = re.fullmatch(r"serving tiny at (http://127\.0\.0\.1:\d+)\n", process.stdout)[1]
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=60)


@pytest.mark.parametrize("processes", [("--workers", 0), ("--workers", 2), ("--gpus", 2)])
def test_what_is_learned_is_there_after_a_stop(tmp_path: Path, processes: tuple[object, ...]) -> None:
    drawings = [path.read_bytes() for path in write_drawings(tmp_path / "drawings", 1)]
    tokens = tmp_path / "tokens.json"
    token = create_token(tokens, "all", ["classify", "manage"])
    options = ("--tokens", tokens, "--state", tmp_path / "state", "--keep-changed", 2)
    options += processes
    with started(tmp_path / "first", *options) as process, client_of(process, token) as client:
        assert httpx.get(client.base_url.join("/v1/streams")).status_code == 401
        files = [("files", (str(number), drawing)) for number, drawing in enumerate(drawings)]
        answers = client.post("/v1/streams/camera/classify", files=files).raise_for_status().json()["answers"]
        assert [answer["key"] for answer in answers] == [str(number) for number in range(len(drawings))]
        assert all(answer["label"] in CLASSES and answer["adapted"] for answer in answers)
        entries = client.get("/v1/streams/camera").json()["entries"]
        assert entries > 0
        process.send(signal.SIGTERM)
        assert process.wait() == 0
    assert token not in process.stderr
    with started(tmp_path / "second", *options) as process, client_of(process, token) as client:
        (answer,) = client.post("/v1/streams/camera/classify", files=files[:1]).json()["answers"]
        assert answer["state_version"] == len(drawings) + 1
        assert client.get("/v1/streams/camera").json()["entries"] == entries + 1
        process.send(signal.SIGINT)
        assert process.wait() == 0


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    return result.exit_code, " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say who may use the service"),
        (("--no-auth", "--tokens", "tokens.json"), "and not both"),
        (("--no-auth", "--host", "0.0.0.0"), "--host must be a loopback address"),
        (("--tokens", "missing.json"), "no file of tokens"),
        (("--no-auth", "--model", "ViT-B-16/openai"), "give the classes"),
        (("--no-auth", "--classes", "cat,cat"), "classes must differ"),
        (("--no-auth", "--queue-bytes", "much"), "--queue-bytes must be a number of bytes"),
        (("--no-auth", "--set", "nothing=1"), "nothing"),
        (("--no-auth", "--templates", "nothing"), "there is no set 'nothing'"),
        (("--no-auth", "--log-format", "xml"), "log_format must be one of"),
        (("--no-auth", "--save-every", "often"), "save_every must be"),
        (("--no-auth", "--ray", "--workers", "2"), "--workers is not for --ray"),
        (("--no-auth", "--decoding-processes", "2"), "--workers"),
        (("--no-auth", "--decoding-threads", "2"), "--workers"),
        (("--no-auth", "--ray", "--gpus", "2"), "--gpus is not for --ray"),
        (("--no-auth", "--workers", "2", "--gpus", "2"), "--gpus is not for --workers"),
        (("--no-auth", "--gpus", "1000"), "--gpus 1000 needs as many GPUs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_mistakes(arguments: tuple[str, ...], words: str) -> None:
    code, errors = run(*arguments, "--port", 0)
    assert code == 2, errors
    assert words in errors


def test_a_port_in_use() -> None:
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        code, errors = run("--no-auth", "--port", port)
    assert code == 1
    assert f"error: 127.0.0.1:{port}: Address already in use" in errors


def test_how_many_workers_there_are(monkeypatch) -> None:
    request = make_request(
        {"model": None, "method": "ramen", "no_auth": True},
        *(None, [], []),
        {"max_queue_bytes": 1000, "max_body_bytes": 2000},
    )
    found = {}
    for cores in (4, 8, 15, 16, 64):
        monkeypatch.setattr("ramen.serve.serve_run.available_cores", lambda cores=cores: cores)
        found[cores] = request.workers_for(torch.device("cuda", 0))
        assert request.workers_for(torch.device("cpu")) == 0
        assert replace(request, host="0.0.0.0").workers_for(torch.device("cpu")) == 2
    assert found == {4: 2, 8: 2, 15: 2, 16: 4, 64: 4}
    assert replace(request, workers=3).workers_for(torch.device("cpu")) == 3
    with pytest.raises(ValueError, match="workers must be at least 0, got -1"):
        replace(request, workers=-1).check()


def test_options_reach_the_service() -> None:
    request = make_request(
        {"model": None, "method": "ramen", "no_auth": True},
        None,
        ["a drawing of {}"],
        ["topk=3"],
        {"max_queue_bytes": 1000, "max_batch": 7, "max_body_bytes": 2000, "max_pixels": 500},
    )
    assert (request.model, len(request.classes), request.parameters) == ("tiny", 24, {"topk": 3})
    assert request.templates == ("a drawing of {}",)
    assert (request.engine.max_batch, request.engine.decoding.max_pixels) == (7, 500)
    assert request.engine.decoding.max_bytes == request.http.max_body_bytes == 2000
    assert request.http.max_bodies_bytes == 11_000
