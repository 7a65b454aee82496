"""Client and command line against the real service, with the tiny model."""

import asyncio
import csv
import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import ramen
from ramen.cli import app
from ramen.client import operations as errors
from ramen.client.result import Result
from ramen.models.tiny_clip.model import load_tiny
from ramen.serve.engine.engine import Engine
from ramen.serve.http.app import create_app
from ramen.serve.http.auth import create_token
from ramen.serve.settings import EngineSettings, HttpSettings
from tests.helpers.drawing_files import CLASSES, write_drawings
from tests.helpers.running_server import running

DOCS = Path(__file__).resolve().parents[2] / "docs"
BATCH = 8


@pytest.fixture(scope="module")
def classifier():
    return load_tiny(CLASSES)


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    return write_drawings(tmp_path_factory.mktemp("drawings"), per_domain=1)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """The file, and tokens by name."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.json"
    scopes = {"operator": ("classify", "manage", "metrics"), "camera": ("classify",)}
    return path, {name: create_token(path, name, allowed) for name, allowed in scopes.items()}


@pytest.fixture(scope="module")
def url(classifier, tokens, tmp_path_factory):
    settings = EngineSettings(max_batch=BATCH, state=str(tmp_path_factory.mktemp("state")))
    engine = Engine(classifier, settings, name="tiny")
    with running(create_app(engine, HttpSettings(tokens=tokens[0], max_body_bytes=2**20))) as server:
        yield server.url


@pytest.fixture
def connect(url, tokens, monkeypatch):
    opened = []
    monkeypatch.delenv("RAMEN_TOKEN", raising=False)

    def make(stream, who="operator", **options):
        opened.append(ramen.Client(url, tokens[1][who], stream, **options))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


@pytest.fixture(scope="module")
def expected(classifier, drawings) -> list[Result]:
    """What the library says; each image sees those before it, and memories are bounded, as in a service."""
    bounds = {"visibility": "causal", "memory_budget": EngineSettings().stream_memory}
    with ramen.Predictor(ramen.create("ramen", classifier, **bounds), batch_size=BATCH) as predictor:
        return list(predictor.classify(drawings))


def assert_same(answers, expected) -> None:
    """But for rounding: a service cuts batches as it likes."""
    assert [(a.key, a.label, a.zero_shot_label) for a in answers] == [
        (e.key, e.label, e.zero_shot_label) for e in expected
    ]
    found = [answer.probability for answer in answers]
    assert found == pytest.approx([result.probability for result in expected], abs=1e-5)


def test_answers_are_those_of_the_library(connect, drawings, expected):
    answers = list(connect("library", in_flight=1).classify_many(drawings))
    assert_same(answers, expected)
    assert [a.adapted for a in answers] == [e.adapted for e in expected]
    assert [a.support for a in answers] == [e.support for e in expected]


def test_files_pixels_and_asyncio_get_the_same_answers(connect, url, tokens, drawings, expected):
    arrays = [(str(path), np.asarray(Image.open(path))) for path in drawings]
    assert_same(list(connect("pixels", in_flight=1).classify_many(arrays)), expected)

    async def ask():
        async with ramen.AsyncClient(url, tokens[1]["camera"], "async", in_flight=1) as client:
            return [answer async for answer in client.classify_many(drawings)]

    assert_same(asyncio.run(ask()), expected)


def test_streams_from_their_beginning_to_their_end(connect, drawings):
    client = connect("life")
    with pytest.raises(errors.NoSuchStreamError):
        client.stream()
    assert client.create_stream(classes=["cat", "boat"]).classes == ("cat", "boat")
    with pytest.raises(errors.ConflictError):
        client.create_stream(classes=["cat", "dog"])
    answers = list(client.classify_many(drawings[:10]))
    assert {answer.label for answer in answers} <= {"cat", "boat"}
    counts = client.feedback({answer.id: answer.label for answer in answers})
    assert (counts.labels, counts.correct, counts.unknown) == (10, 10, 0)
    assert client.snapshot().images == 10
    assert client.reset().images == 0
    assert client.set_classes(list(CLASSES)).classes == CLASSES
    assert "life" in [info.name for info in client.streams("li")]
    client.delete()
    with pytest.raises(errors.NoSuchStreamError):
        client.stream()


def test_all_probabilities(connect, drawings):
    answer = connect("all").classify(drawings[0], all_probabilities=True)
    assert set(answer.probabilities) == set(CLASSES)
    assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)


def test_what_cannot_be_decoded(connect, drawings):
    client = connect("broken", in_flight=1)
    answers = list(client.classify_many([drawings[0], ("mine", b"no image"), b"", drawings[1]]))
    assert [answer.error is None for answer in answers] == [True, False, False, True]
    assert answers[1].error.startswith("mine cannot be read as an image")
    alone = client.classify(("mine", b"no image"))
    assert alone.error.startswith("mine cannot be read as an image")
    assert client.classify(b"").error is not None
    assert "bytes" in client.classify(b"x" * (2**20 + 1)).error
    assert client.stream().images == 2


def test_keys_that_are_no_file_names(connect, drawings):
    data = drawings[0].read_bytes()
    keys = ['quo"ted\\', "two\r\nlines", "\N{SLICE OF PIZZA}", "latin-\udce9", "", "a" * 400, "x; name=y"]
    answers = list(connect("keys").classify_many([(key, data) for key in keys]))
    assert [(answer.key, answer.error) for answer in answers] == [(key, None) for key in keys]


def test_rights(connect, url):
    client = connect("rights", "camera")
    with pytest.raises(errors.ForbiddenError) as caught:
        client.create_stream()
    assert (caught.value.status, caught.value.code) == (403, "scope")
    with pytest.raises(errors.ForbiddenError):
        client.statistics()
    assert client.model().max_batch == BATCH
    with ramen.Client(url, "wrong") as stranger:
        assert stranger.ready()
        with pytest.raises(errors.UnauthorizedError):
            stranger.model()


def test_mistakes_are_explained(connect, drawings):
    client = connect("mistakes")
    client.create_stream()
    with pytest.raises(errors.InvalidRequestError, match="classes"):
        client.set_classes(["cat", "cat"])
    with pytest.raises(errors.InvalidRequestError):
        client.create_stream("-no name")
    with pytest.raises(errors.InvalidRequestError, match="timeout_ms"):
        connect("mistakes", timeout=10_000).classify(drawings[0])


def test_statistics(connect, drawings):
    client = connect("statistics")
    before = client.statistics().images
    list(client.classify_many(drawings[:3]))
    assert client.statistics().images == before + 3


def classify(url, token, folder, *arguments):
    command = ["classify", str(folder), "--server", url, *arguments]
    return CliRunner().invoke(app, command, env={"COLUMNS": "400", "RAMEN_TOKEN": token})


def test_the_command_writes_what_the_library_says(url, tokens, drawings, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--stream", "command", "--out", "labels.csv", "--page", "changes.html"]
    result = classify(url, tokens[1]["camera"], drawings[0].parent, *options)
    assert result.exit_code == 0, result.output
    with open("labels.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["file"], row["label"], row["zero_shot_label"]) for row in rows] == [
        (e.key, e.label, e.zero_shot_label) for e in expected
    ]
    assert [row["state_version"] for row in rows] == [str(e.state_version) for e in expected]
    assert "command" in Path("changes.html").read_text()
    refused = classify(url, tokens[1]["operator"], drawings[0].parent, *options, "--classes", "a,b")
    assert refused.exit_code == 2
    assert "the stream 'command' has other classes (cat, house, boat)" in refused.stderr


def test_the_pages_examples_are_answered(url, tokens, drawings):
    """The forms of a body that the page's curl lines send."""
    page = (DOCS / "service.md").read_text()
    kinds = set(re.findall(r'Content-Type: ([\w./-]+)" ', page)) - {"application/json"}
    assert kinds == {"image/jpeg", "application/x-ramen-uint8"}
    pixels = np.zeros((480, 640, 3), np.uint8)
    sent = {
        "image/jpeg": (drawings[0].read_bytes(), {}),
        "application/x-ramen-uint8": (pixels.tobytes(), {"X-Shape": "1,480,640,3"}),
    }
    for kind, (content, more) in sent.items():
        headers = {"Authorization": f"Bearer {tokens[1]['camera']}", "Content-Type": kind, **more}
        reply = httpx.post(f"{url}/v1/streams/page/classify", content=content, headers=headers)
        assert reply.status_code == 200, reply.text
        listed = page[page.index("| `id` |") : page.index("An image that cannot be decoded gets")]
        assert set(re.findall(r"`(\w+)`(?=[^|]*\| )", listed)) >= set(reply.json()["answers"][0])
