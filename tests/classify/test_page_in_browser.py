"""The page in a real Chromium, at desktop and phone width."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from ramen.classify.output import open_output
from ramen.classify.page import PageSettings, write_page
from tests.fakes.served_results import IDENTITY, answer, failure
from tests.helpers.webdriver import BROWSER, DRIVER, Browser

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromedriver; Debian: chromium chromium-driver"
)
LONG = "a-very-long-name-without-any-blank-in-it-" * 5
ODD = ['<b>bold & "quoted".png', "\udcff\n.png", f"{LONG}.png"]
NAMES = [*(f"{n}.png" for n in range(6)), *ODD, *(f"{n}.png" for n in range(6, 30))]
LABELS = ["cat", "dog", "fire truck", "猫", "Pneumonoultramicroscopicsilicovolcanoconiosis and more", "<i>"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changes")
    results = []
    for number, name in enumerate(NAMES):
        file = folder / name
        Image.new("RGB", (300, 200), (8 * number % 256, 90, 160)).save(file, "PNG")
        label, before = LABELS[number % 6], LABELS[number % 5]
        results.append(answer(str(file), label, before, probability=0.3 + 0.02 * number))
    results += [answer(f"gone-{number}.png", "cat", "dog") for number in range(5)]
    results += [failure(f"{LONG}{name}", f"reason-{LONG}") for name in ("a.jpg", "<u>b.jpg")]
    with open_output(folder / "labels.csv", IDENTITY) as output:
        output.start()
        output.append(results)
        output.finish()
        settings = PageSettings(
            folder / "labels.csv", "tiny", "Ramen", LABELS, {"weights": 64 * "ab"}, {"codec": "auto"}
        )
        write_page(folder / "page" / "changes.html", output, settings)
    return folder / "page" / "changes.html"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(params=[1280, 390])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def browser(window: Browser, page: Path, width: int) -> Browser:
    window.resize(width, 900)
    window.log("browser")
    window.requests()
    window.open(page)
    return window


def test_it_loads_without_errors_and_without_network(browser: Browser, page: Path) -> None:
    assert browser.script("return document.title") == "Ramen on 40 files"
    assert browser.log("browser") == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]


def test_nothing_overflows(browser: Browser, width: int) -> None:
    assert browser.script("return window.innerWidth") == width
    assert browser.script("return document.documentElement.scrollWidth") <= width
    code = """
        const outside = [];
        for (const element of document.querySelectorAll("main *, header *")) {
          if (element.closest(".label bdi")) continue;  // cut off with an ellipsis
          const box = element.getBoundingClientRect();
          const beyond = box.right > window.innerWidth + 1 || box.left < -1;
          if (box.width && beyond) outside.push(element.tagName);
        }
        return outside;"""
    assert browser.script(code) == []


def test_every_image_is_there_and_as_wide_as_it_should_be(browser: Browser, width: int) -> None:
    browser.script("document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })")
    code = "return [...document.querySelectorAll(arguments[0])].map(i => [i.naturalWidth, i.width])"
    thumbnails = browser.script(code, ".cards img")
    assert len(thumbnails) == len([n for n in range(len(NAMES)) if LABELS[n % 6] != LABELS[n % 5]])
    assert all(natural == 256 for natural, _ in thumbnails)
    assert min(shown for _, shown in thumbnails) > 100
    figures = browser.script(code, "figure img")
    assert len(figures) == 2
    for natural, shown in figures:
        # the one drawn for this width: its text has about the size in which it was drawn
        assert (natural > 600) == (width == 1280)
        assert 0.7 < shown / natural < 1.8


def test_names_are_shown_and_not_interpreted(browser: Browser) -> None:
    text = browser.script("return document.body.innerText")
    assert '<b>bold & "quoted".png' in text
    assert "\\xff\\x0a.png" in text
    assert "no longer there" in text
    assert browser.script("return document.querySelectorAll('main b, main i, main u').length") == 0


def test_it_follows_the_readers_dark_mode(browser: Browser) -> None:
    assert browser.background_colours() == ("rgb(255, 255, 255)", "rgb(20, 23, 26)")
