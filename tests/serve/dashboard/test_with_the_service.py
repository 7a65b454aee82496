"""The page of the real HTTP front: what the two believe about each other is true."""

import urllib.request
from pathlib import Path

from ramen.client.operations import ChangedImage
from ramen.serve.http.app import create_app
from ramen.serve.http.auth import create_token
from ramen.serve.http.dashboard import dashboard_csp
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import FakeBackend
from tests.fakes.http_service import jpeg
from tests.helpers.given_images import drop_image
from tests.helpers.running_server import running
from tests.helpers.webdriver import ENTER, Browser


def test_from_the_token_to_the_last_button(window: Browser, tmp_path: Path) -> None:
    """An operator signs in, tries an image in two streams, looks at one, resets it, deletes the other."""
    backend = FakeBackend()
    backend.changed_images = (ChangedImage("door.jpg", "cat", 0.75, "dog", 0.5, 1.7e9, jpeg(1)),)
    token = create_token(tmp_path / "tokens.json", "operator", ["classify", "manage"])
    window.resize(1280, 900)
    window.prefer(None)
    with running(create_app(backend, HttpSettings(tokens=tmp_path / "tokens.json"))) as server:
        with urllib.request.urlopen(server.url) as page:
            assert page.headers["Content-Security-Policy"] == dashboard_csp()
        window.open(server.url)
        window.shows("#access-why", "The service asks for a token.")
        window.keys("#token", token + ENTER)
        window.shows("#connection-state", "Live")
        window.shows("#facts", "method ramen · 3 classes")
        assert window.text("h1") == "Fake-B-16/none"
        window.shows("#no-streams", "There are no streams yet")
        drop_image(window, "first.png", "#drop")
        window.shows("#try-message", "first.png: ")
        window.shows("#selected-title", "dashboard")
        drop_image(window, "second.png", "#drop")
        window.shows("#try-message", "second.png: ")
        assert [(stream, image.key) for stream, [image] in backend.sent] == [
            ("dashboard", "first.png"),
            ("dashboard", "second.png"),
        ]
        window.shows("#numbers", "2none failed")
        window.shows("#mix", "cat2 · 66.7 %")
        window.shows("#changed", "door.jpg")
        window.wait("document.querySelector('#changed img').naturalWidth > 0")
        window.shows("#counters", "2 images in 2 requests")
        window.keys("#try-stream", "-2")
        drop_image(window, "third.png", "#drop")
        window.shows("#stream-table", "dashboard-2")
        window.click("#snapshot-stream")
        window.shows("#selected-message", "is on disk")
        window.click("#reset-stream")
        window.click("#confirm-yes")
        window.shows("#selected-message", "dashboard has forgotten")
        window.shows("#numbers", "0none failed")
        window.click("[data-stream=dashboard-2] button")
        window.shows("#selected-title", "dashboard-2")
        window.click("#delete-stream")
        window.click("#confirm-yes")
        window.shows("#selected-outcome", "dashboard-2 is deleted.")
        window.wait("document.querySelectorAll('#stream-table tbody tr').length === 1")
    window.shows("#connection-state", "Connection lost")
