"""An image to try: dropped, pasted, chosen; and what goes wrong with it."""

from pathlib import Path

import pytest
from PIL import Image

from tests.fakes.http_service import FakeService
from tests.helpers.given_images import drop_image, paste_image
from tests.helpers.webdriver import Browser


@pytest.mark.parametrize("way", ["drop", "paste", "file"])
def test_an_image_is_tried_in_a_stream_of_its_own(
    browser: Browser, service: FakeService, tmp_path: Path, way: str
) -> None:
    if way == "file":
        Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
        browser.keys("#file", str(tmp_path / "image.png"))
    elif way == "paste":
        paste_image(browser, "image.png")
    else:
        drop_image(browser, "image.png", "#drop p")
    browser.shows("#try-message", "image.png: cat, 62.0 %; changed from dog")
    assert service.sent("POST") == ["/v1/streams/dashboard/classify"]
    body = next(body for verb, _, body in service.requests if verb == "POST")
    assert b'name="files"; filename="image.png"' in body
    assert b"\x89PNG" in body
    answer = browser.text(".answer")
    for part in (
        "cat 62.0 %",
        "changed",
        "without adaptation: dog 41.0 %",
        "queued 3.2 ms",
        "computed 21.4 ms",
    ):
        assert part in answer
    assert len(browser.texts(".answer .bars li")) == 5
    browser.wait("document.querySelector('.answer img').naturalWidth === 8")
    assert browser.text("#selected-title") == "camera-1"
    browser.shows("#stream-table", "dashboard")


def test_a_file_that_misses_the_zone_is_not_opened(browser: Browser, service: FakeService) -> None:
    drop_image(browser, "image.png", "h1")
    assert service.sent("POST") == []


def test_an_image_is_tried_in_the_selected_or_in_a_new_stream(browser: Browser, service: FakeService) -> None:
    assert "dashboard learns from the image" in browser.text("#try-note")
    browser.click("#try-selected")
    assert "The stream camera-1 learns from the image." in browser.text("#try-note")
    drop_image(browser, "a.png", "#drop")
    browser.shows("#try-message", "a.png: cat")
    browser.script("document.getElementById('try-stream').value = ''")
    browser.keys("#try-stream", "new")
    drop_image(browser, "b.png", "#drop")
    browser.shows("#try-message", "b.png: cat")
    assert service.sent("POST") == ["/v1/streams/camera-1/classify", "/v1/streams/new/classify"]
    browser.keys("#try-stream", "/../x")
    drop_image(browser, "c.png", "#drop")
    browser.shows("#try-message", "A stream's name has at most 64 letters")
    assert len(service.sent("POST")) == 2


def test_an_answer_that_adaptation_did_not_change(browser: Browser, service: FakeService) -> None:
    service.answer = {"changed": False, "adapted": False, "zero_shot_label": "cat", "support": None}
    drop_image(browser, "a.png", "#drop")
    browser.shows(".answers", "The same without adaptation: cat 41.0 %")
    assert "not adapted: answered zero-shot" in browser.text(".answer")


def test_an_image_that_cannot_be_decoded(browser: Browser, service: FakeService) -> None:
    service.answer = {"error": "image: it has no pixels", "label": None}
    drop_image(browser, "a.png", "#drop")
    browser.shows("#try-message", "a.png: image: it has no pixels")
    assert browser.texts(".answer") == []


@pytest.mark.parametrize(
    ("status", "message", "headers", "words"),
    [
        (
            413,
            "the body has 70 MB; at most 64 MB",
            {},
            "This is too large: the body has 70 MB; at most 64 MB.",
        ),
        (415, "GIF", {}, "The service does not read files of this kind: GIF."),
        (422, "no pixels", {}, "The service cannot use this: no pixels."),
        (429, "full", {"Retry-After": "2"}, "The service has too much to do: full. Try again in 2 seconds."),
        (504, "", {}, "The service did not answer in time, and learned nothing from it."),
        (500, "", {}, "The service failed (500)."),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_errors_are_shown_in_words(
    browser: Browser, service: FakeService, status: int, message: str, headers: dict[str, str], words: str
) -> None:
    service.failures["POST", "/v1/streams/dashboard/classify"] = (status, message, headers)
    drop_image(browser, "a.png", "#drop")
    browser.shows("#try-message", f"a.png: {words}")


def test_a_service_that_is_gone(browser: Browser) -> None:
    browser.script("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    drop_image(browser, "a.png", "#drop")
    browser.shows("#try-message", "a.png: The service cannot be reached.")
    browser.script("streamList.poll()")
    browser.shows("#list-message", "The service cannot be reached.")
