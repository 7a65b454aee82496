from collections.abc import Iterator

import pytest

from tests.fakes.http_service import FakeService, statistics, stream_activity
from tests.helpers.webdriver import BROWSER, DRIVER, Browser


@pytest.fixture(scope="package")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not (BROWSER and DRIVER):
        pytest.skip("needs chromium and chromedriver; Debian: chromium chromium-driver")
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def service() -> Iterator[FakeService]:
    """A service with a few streams, each on an address of its own: nothing is left from another test."""
    with FakeService() as service:
        service.add("camera-1", "camera-2", "door", last_used=1_000.0)
        service.streams["camera-1"]["last_used"] = 2_000.0
        service.activities["camera-1"] = stream_activity(changed_images=3)
        yield service


@pytest.fixture
def browser(window: Browser, service: FakeService) -> Browser:
    """The page of the service, at the width of a desktop, after its first figures."""
    service.publish(statistics())
    window.resize(1280, 900)
    window.prefer(None)
    window.open(service.url)
    window.wait("document.getElementById('connection').dataset.state === 'live'")
    window.wait("!document.getElementById('selected-body').hidden")
    window.log("browser")
    return window
