"""Both clients against a service that says what it got; ``AsyncClient`` is called through a bridge."""

import asyncio
import inspect
import io
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image

import ramen
from ramen.client import async_client, client
from ramen.serve.client import errors
from tests.fakes.service import CLASSES, NO_IMAGE, FakeService, Reply, label_number, refusal, sent_images
from tests.helpers.photos import encoded, photo


class Bridge:
    """An ``AsyncClient`` that is called like a ``Client``."""

    def __init__(self, *given: object, **named: object) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = ramen.AsyncClient(*given, **named)

    def __getattr__(self, name: str):
        method = getattr(self._client, name)

        def call(*given: object, **named: object):
            found = method(*given, **named)
            return self._each(found) if inspect.isasyncgen(found) else self._loop.run_until_complete(found)

        return call

    def _each(self, found) -> Iterator[object]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(found))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(found.aclose())


@pytest.fixture(params=["sync", "async"])
def connect(request, monkeypatch):
    """Makes a client of a service; waits between attempts are noted in ``connect.waits`` and not waited."""
    monkeypatch.delenv("RAMEN_TOKEN", raising=False)
    waits: list[float] = []
    opened: list[object] = []

    async def note(seconds):
        waits.append(seconds)

    monkeypatch.setattr(client.time, "sleep", waits.append)
    monkeypatch.setattr(async_client.asyncio, "sleep", note)

    def make(service: FakeService, **options):
        kind = ramen.Client if request.param == "sync" else Bridge
        opened.append(kind("http://fake", transport=service.transport(), **options))
        return opened[-1]

    make.waits = waits
    yield make
    for one in opened:
        one.close()


def files(count: int) -> list[bytes]:
    return [bytes([number]) * 3 + b"!" for number in range(count)]


# -- images ---------------------------------------------------------------------------------------------


def test_an_answer_has_all_fields(connect):
    service = FakeService()
    answer = connect(service, stream="camera-1").classify(b"ab")
    assert (answer.stream, answer.key, answer.label) == ("camera-1", "image 0", CLASSES[label_number(b"ab")])
    assert answer.top == ((answer.label, 0.5),)
    assert (answer.support, answer.state_version, answer.queued_ms, answer.computed_ms) == (3, 1, 1.5, 2.5)
    assert service.requests[0].url.path == "/v1/streams/camera-1/classify"
    result = answer.to_result()
    assert isinstance(result, ramen.Result)
    assert (result.key, result.label, result.changed) == (answer.key, answer.label, answer.changed)


def test_every_kind_of_source(connect, tmp_path):
    service = FakeService(max_batch=16)
    image, pixels = photo(1), np.asarray(photo(2))
    path = tmp_path / "a photo.png"
    path.write_bytes(encoded(image))
    sources = [path, str(path), b"bytes", io.BytesIO(b"file"), ("door", b"mine"), (7, pixels), pixels, image]
    answers = list(connect(service, in_flight=1).classify_many(sources))
    keys = [str(path), str(path), "image 2", "image 3", "door", "7", "image 6", "image 7"]
    assert [answer.key for answer in answers] == keys
    sent = service.learned
    assert sent[:5] == [path.read_bytes()] * 2 + [b"bytes", b"file", b"mine"]
    assert sent[5:7] == [pixels.tobytes()] * 2
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(sent[7]))), np.asarray(image))
    assert [answer.label for answer in answers] == [CLASSES[label_number(data)] for data in sent]
    posts = [request for request in service.requests if request.method == "POST"]
    assert [len(sent_images(request)) for request in posts] == [5, 2, 1]  # files, pixels, files
    assert posts[1].headers["x-shape"] == "2,40,50,3"


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "F", "1"])
def test_pil_images_of_every_mode(connect, mode):
    service = FakeService()
    image = photo(3).convert(mode) if mode != "P" else photo(3).quantize(16)
    assert connect(service).classify(image).error is None
    received = Image.open(io.BytesIO(service.learned[0])).convert("RGB")
    assert np.array_equal(np.asarray(received), np.asarray(image.convert("RGB")))


def test_a_pil_image_keeps_how_it_is_to_be_turned(connect):
    service, image = FakeService(), photo(3)
    image.getexif()[0x0112] = 6
    connect(service).classify(image)
    assert Image.open(io.BytesIO(service.learned[0])).getexif()[0x0112] == 6


def test_keys_of_any_text_come_back(connect):
    keys = ['quo"ted', "two\nlines", "\N{SLICE OF PIZZA}", "latin-\udce9", "", "x" * 500]
    answers = connect(FakeService(max_batch=8)).classify_many([(key, b"data") for key in keys])
    assert [(answer.key, answer.error) for answer in answers] == [(key, None) for key in keys]


def test_what_cannot_be_read_has_an_error_and_the_others_are_answered(connect, tmp_path):
    service = FakeService()
    sources = [
        b"1",
        tmp_path / "gone.jpg",
        ("broken", NO_IMAGE),
        tmp_path,
        b"2",
        np.zeros((2, 2), np.float32),
    ]
    answers = list(connect(service, in_flight=1).classify_many(sources))
    assert [answer.error is None for answer in answers] == [True, False, False, False, True, False]
    assert answers[1].error == f"{tmp_path / 'gone.jpg'} cannot be read as an image: no such file"
    assert answers[2].error == "broken cannot be read as an image: it is none"
    assert "directory" in answers[3].error
    assert "uint8 of shape (H, W, 3), got float32 (2, 2)" in answers[5].error
    assert service.learned == [b"1", b"2"]


def test_a_single_image_that_cannot_be_decoded(connect):
    answer = connect(FakeService()).classify(("mine", NO_IMAGE))
    assert (answer.label, answer.error) == (None, "mine: it is undecodable")


@pytest.mark.parametrize("source", [17, None, (1, 2, 3), ["a", "b"], (1.5, b"x")], ids=repr)
def test_what_is_no_image_is_refused(connect, source):
    with pytest.raises(TypeError, match="sources"):
        connect(FakeService()).classify(source)


def test_many_images_in_order_and_in_requests_that_the_service_allows(connect):
    service, sent = FakeService(max_batch=4), files(23)
    answers = list(connect(service, in_flight=3).classify_many(iter(sent)))
    assert [answer.label for answer in answers] == [CLASSES[label_number(data)] for data in sent]
    assert [answer.key for answer in answers] == [f"image {number}" for number in range(23)]
    sizes = [len(sent_images(request)) for request in service.requests if request.method == "POST"]
    assert sorted(sizes) == [3, 4, 4, 4, 4, 4]
    assert sorted(service.learned) == sorted(sent)


def test_one_request_at_a_time_keeps_the_order(connect):
    service, sent = FakeService(max_batch=2), files(9)
    list(connect(service, in_flight=1).classify_many(sent))
    assert service.learned == sent
    assert service.most_at_a_time == 1


def test_the_requests_at_a_time_are_bounded_and_used():
    """Three wait for each other, which they could not if they came one after another; never more."""
    together = threading.Barrier(3)
    service = FakeService(max_batch=1, before_answer=lambda: together.wait(60))
    with ramen.Client("http://fake", transport=service.transport(), in_flight=3) as sender:
        assert len(list(sender.classify_many(files(9)))) == 9
    assert service.most_at_a_time == 3


def test_sources_are_taken_as_they_are_needed(connect):
    taken = []

    def endless():
        for number in range(10**9):
            taken.append(number)
            yield b"x"

    answers = connect(FakeService(max_batch=2), in_flight=2).classify_many(endless())
    next(answers)
    assert len(taken) <= 6
    answers.close()


def test_a_request_that_is_too_large_is_divided(connect):
    service = FakeService(max_body=3000)
    sent = [b"a" * 1500, b"b" * 1500, b"c" * 5000, b"d"]
    answers = list(connect(service).classify_many(sent))
    assert [answer.error for answer in answers] == [None, None, "image 2: it is too_large", None]
    assert service.learned == [sent[0], sent[1], sent[3]]


def test_an_image_with_too_many_bytes_is_not_sent(connect, tmp_path):
    service, path = FakeService(), tmp_path / "large.png"
    path.write_bytes(b"x" * 200)
    sender = connect(service, max_bytes=100)
    assert all(
        "more than 100 B" in sender.classify(s).error for s in (path, b"x" * 200, io.BytesIO(b"x" * 200))
    )
    assert service.requests == []


def test_what_goes_along(connect):
    service = FakeService(token="secret")
    connect(service, token="secret", timeout=2.5).classify(b"x", stream="other", all_probabilities=True)
    request = service.requests[0]
    assert request.url.path == "/v1/streams/other/classify"
    assert dict(request.url.params) == {"timeout_ms": "2500", "probabilities": "all"}
    assert request.headers["authorization"] == "Bearer secret"


# -- streams and the service ----------------------------------------------------------------------------


def test_streams(connect):
    service = FakeService()
    sender = connect(service, stream="camera-1")
    assert sender.create_stream(classes=["a", "b"]).classes == ("a", "b")
    assert sender.create_stream("other").classes == tuple(CLASSES)
    assert sender.stream().name == "camera-1"
    assert sender.set_classes(["c", "d"]).classes == ("c", "d")
    for action in (sender.reset, sender.snapshot):
        assert action().name == "camera-1"
    posts = [request.url.path for request in service.requests if request.method == "POST"]
    assert posts == ["/v1/streams/camera-1/reset", "/v1/streams/camera-1/snapshot"]
    assert sender.delete("other") is None
    with pytest.raises(errors.NoSuchStreamError) as caught:
        sender.stream("other")
    assert (caught.value.status, caught.value.code) == (404, "unknown_stream")


def test_all_streams_are_listed_page_by_page(connect):
    service = FakeService(streams={f"s{number:03}": CLASSES for number in range(250)} | {"t": CLASSES})
    assert [info.name for info in connect(service).streams("s")] == [f"s{number:03}" for number in range(250)]
    assert len(service.requests) == 3


def test_true_labels(connect):
    service = FakeService()
    sender = connect(service)
    answers = list(sender.classify_many(files(4)))
    truth = {answer.id: answer.label for answer in answers}
    assert sender.feedback(truth).correct == sender.feedback(truth.items()).labels == len(truth)


def test_paths(connect):
    """Names are quoted, and the service may be below a path."""
    service = FakeService()
    connect(service).create_stream("a/../b c")
    assert service.requests[0].url.raw_path == b"/v1/streams/a%2F..%2Fb%20c"
    with (
        ramen.Client("http://fake/ramen/", transport=service.transport()) as sender,
        pytest.raises(ramen.ServerError),
    ):
        sender.model()
    assert service.requests[1].url.path == "/ramen/v1/model"


def test_model_and_readiness(connect):
    service = FakeService()
    sender = connect(service)
    model = sender.model()
    assert (model.name, model.classes, model.image_size, model.max_batch) == (
        "tiny",
        tuple(CLASSES),
        (32, 32),
        4,
    )
    assert sender.ready() is True
    service.script = [refusal(503, "stopping", retry_after_ms=1000)]
    assert sender.ready() is False


# -- what is sent again ---------------------------------------------------------------------------------


def test_an_overloaded_service_is_asked_again_after_the_time_it_says(connect):
    service = FakeService(script=[refusal(429, "overloaded", retry_after_ms=2500)] * 2)
    assert connect(service).classify(b"x").error is None
    assert service.learned == [b"x"]
    assert all(2.5 <= wait <= 2.5 * 1.25 for wait in connect.waits)
    assert len(connect.waits) == 2


def test_the_header_counts_if_the_body_says_nothing(connect):
    service = FakeService(script=[Reply(429, None, {"Retry-After": "4"})])
    connect(service).classify(b"x")
    assert 4 <= connect.waits[0] <= 5


@pytest.mark.parametrize(
    "failure",
    [
        refusal(503, "stopping", retry_after_ms=10),
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("too slow"),
    ],
    ids=["503", "refused", "timeout"],
)
def test_images_are_sent_again_if_nothing_of_them_was_taken(connect, failure):
    service = FakeService(script=[failure])
    assert connect(service).classify(b"x").error is None
    assert len(service.requests) == 2
    assert len(connect.waits) == 1


UNCERTAIN = {
    "read": httpx.ReadError("reset"),
    "read timeout": httpx.ReadTimeout("too slow"),
    "write": httpx.WriteError("reset"),
    "protocol": httpx.RemoteProtocolError("disconnected"),
    "proxy's 503": Reply(503, None),
    "replica ended": refusal(503, "answer_lost"),
}


@pytest.mark.parametrize("failure", UNCERTAIN.values(), ids=UNCERTAIN.keys())
def test_images_are_not_sent_again_if_they_may_have_been_learned(connect, failure):
    service = FakeService(script=[failure])
    kind = errors.ServerUnavailableError if isinstance(failure, Reply) else errors.ConnectionLostError
    with pytest.raises(kind):
        connect(service).classify(b"x")
    assert len(service.requests) == 1
    assert connect.waits == []


@pytest.mark.parametrize("failure", UNCERTAIN.values(), ids=UNCERTAIN.keys())
def test_unless_the_caller_allows_it(connect, failure):
    service = FakeService(script=[failure])
    assert connect(service, resend_uncertain=True).classify(b"x").error is None


def test_questions_are_always_asked_again_and_changes_are_not(connect):
    service = FakeService(streams={"default": CLASSES})
    sender = connect(service)
    for ask in (sender.model, sender.stream, sender.snapshot, sender.create_stream):
        service.script = [httpx.ReadError("reset")]
        assert ask() is not None
    for change in (
        sender.reset,
        sender.delete,
        lambda: sender.set_classes(["a"]),
        lambda: sender.feedback({}),
    ):
        service.script = [httpx.ReadError("reset")]
        with pytest.raises(errors.ConnectionLostError):
            change()


def test_it_gives_up(connect):
    service = FakeService(script=[refusal(429, "overloaded")] * 10)
    with pytest.raises(errors.ServerOverloadedError) as caught:
        connect(service, retries=3).classify(b"x")
    assert (caught.value.status, caught.value.code, caught.value.message) == (
        429,
        "overloaded",
        "it is overloaded",
    )
    assert len(service.requests) == 4


def test_it_does_not_wait_longer_than_it_may(connect):
    service = FakeService(script=[refusal(429, "overloaded", retry_after_ms=20_000)])
    with pytest.raises(errors.ServerOverloadedError) as caught:
        connect(service, retry_seconds=10).classify(b"x")
    assert caught.value.retry_after == 20
    assert connect.waits == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequestError),
        (401, errors.UnauthorizedError),
        (403, errors.ForbiddenError),
        (404, errors.NoSuchStreamError),
        (409, errors.ConflictError),
        (415, errors.InvalidRequestError),
        (422, errors.InvalidRequestError),
        (500, errors.UnexpectedReplyError),
        (504, errors.DeadlineExceededError),
        (302, errors.UnexpectedReplyError),
    ],
)
def test_other_refusals_are_errors_at_once(connect, status, kind):
    service = FakeService(script=[refusal(status, "why")])
    with pytest.raises(kind, match=rf"it is why \({status} why\)") as caught:
        connect(service).classify(b"x")
    assert isinstance(caught.value, ramen.ServerError)
    assert len(service.requests) == 1


@pytest.mark.parametrize("body", [None, [], {"answers": []}, {"answers": [{}]}, {"answers": 3}], ids=repr)
def test_replies_that_make_no_sense(connect, body):
    with pytest.raises(errors.UnexpectedReplyError):
        connect(FakeService(script=[Reply(200, body)])).classify(b"x")


def test_a_failure_among_many_comes_after_what_was_answered(connect):
    service = FakeService(max_batch=2)
    answers = connect(service, in_flight=1).classify_many(files(6))
    assert [next(answers).label for _ in range(2)]
    service.script = [refusal(401, "invalid_token")]
    with pytest.raises(errors.UnauthorizedError):
        list(answers)
    assert len(service.learned) == 2


# -- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"url": url}
            for url in ("ftp://host", "localhost:8000", "http://", "http://u:geheim@host", "http://h/?a=1")
        ),
        *({"token": "geheim words"}, {"token": "geheim\n"}, {"stream": ".."}, {"stream": ""}, {"timeout": 0}),
        *({"retries": -1}, {"retry_seconds": -1}, {"in_flight": 0}, {"max_bytes": 0}),
    ],
    ids=str,
)
def test_wrong_settings_are_named_and_no_secret_is_shown(options):
    with pytest.raises(ValueError, match=next(iter(options))) as caught:
        ramen.AsyncClient(**{"url": "http://host", **options})
    assert "geheim" not in str(caught.value)


def test_the_token_of_the_environment(connect, monkeypatch):
    monkeypatch.setenv("RAMEN_TOKEN", "from-environment")
    service = FakeService(token="from-environment")
    sender = connect(service)
    assert sender.ready()
    assert "from-environment" not in repr(sender)
    with pytest.raises(errors.UnauthorizedError):
        connect(service, token="another").model()


def test_a_real_connection():
    service = FakeService()
    with service.listening() as url:
        with ramen.Client(url) as sender:
            assert [a.error for a in sender.classify_many(files(10))] == [None] * 10

        async def ask() -> list[str | None]:
            async with ramen.AsyncClient(url) as asker:
                return [answer.error async for answer in asker.classify_many(files(10))]

        assert asyncio.run(ask()) == [None] * 10
    with ramen.Client(url, retries=1) as sender, pytest.raises(errors.UnreachableError) as caught:
        sender.classify(b"x")
    assert caught.value.nothing_done


def test_a_client_does_not_load_torch():
    code = (
        "import sys, ramen; c = ramen.Client('http://localhost:1', retries=0); ramen.AsyncClient('http://localhost:1')\n"
        "try: c.classify(b'x')\n"
        "except ramen.ServerError: print('torch' in sys.modules, 'fastapi' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False False"


def test_without_httpx_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs the package httpx: pip install 'ramen-tta\[client\]'"
    ):
        ramen.Client("http://host")
