"""The page in a real Chromium: clicking, sorting, filtering, copying."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramen.data.drawings.tiny import DOMAINS
from ramen.experiments.report import write_report
from ramen.experiments.store import write_result
from tests.fakes.results import sample_result
from tests.helpers.webdriver import BROWSER, DRIVER, ENTER, Browser

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromedriver; Debian: chromium chromium-driver"
)
AVERAGES = {"clip": 50.0, "tent": 58.0, "ramen": 66.0, "sar": 62.0}
TABLE = "#setting-1-accuracy"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for method, average in AVERAGES.items():
        for seed in range(2):
            for protocol in ("mixed", "single"):
                run = sample_result(method, seed=seed, average=average, protocol=protocol)
                write_result(folder / f"{method}-{protocol}-{seed}.json", run)
    for capacity in (10, 20, 30):
        run = sample_result(
            "ramen", average=60 + capacity / 10, parameters={"lr": 0.01, "capacity": capacity}
        )
        write_result(folder / f"capacity-{capacity}.json", run)
    points = [f"capacity-{capacity}.json" for capacity in (10, 20, 30)]
    sweep = {"kind": "plan", "view": "sweep", "parameter": "capacity", "method": "ramen", "points": points}
    write_result(folder / "sweep.json", {**sweep, "base": [], "references": []})
    (folder / "cut.json").write_text('{"schema": 1, ')
    write_report([folder], folder / "page" / "report.html", title="Made-up results")
    return folder / "page" / "report.html"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, page: Path) -> Browser:
    window.resize(1280, 900)
    window.log("browser")
    window.requests()
    window.open(page)
    return window


def column(browser: Browser, place: int) -> list[str]:
    code = "return [...document.querySelector(arguments[0]).tBodies[0].rows].filter(r => !r.hidden)"
    return browser.script(f"{code}.map(r => r.cells[arguments[1]].textContent.trim())", TABLE, place)


def head(place: int) -> str:
    return f"{TABLE} th:nth-child({place + 1})"


def order(browser: Browser, place: int) -> str:
    return browser.script("return document.querySelector(arguments[0]).ariaSort", head(place))


def test_it_loads_without_errors_and_without_network(browser: Browser, page: Path) -> None:
    assert browser.script("return document.title") == "Made-up results"
    assert browser.log("browser") == []
    asked = [url for url in browser.requests() if not url.startswith("data:")]
    assert asked == [page.as_uri()]
    assert "cut.json is damaged" in browser.script("return document.querySelector('#left-out').textContent")


def test_a_click_on_a_head_sorts_and_the_third_click_restores(browser: Browser) -> None:
    first = ["Zero-shot", "CLIP", "Tent", "SAR", "Ramen"]
    assert column(browser, 0) == first
    for expected, names in (
        ("descending", ["Ramen", "SAR", "Tent", "Zero-shot", "CLIP"]),
        ("ascending", ["CLIP", "Zero-shot", "Tent", "SAR", "Ramen"]),
        ("none", first),
    ):
        browser.click(f"{head(1)} > button")
        assert column(browser, 0) == names
        assert order(browser, 1) == expected
    browser.click(f"{head(0)} > button")
    assert column(browser, 0) == ["CLIP", "Ramen", "SAR", "Tent", "Zero-shot"]  # words as words
    assert (order(browser, 0), order(browser, 1)) == ("ascending", "none")


def test_the_keyboard_sorts(browser: Browser) -> None:
    browser.keys(f"{head(1)} > button", ENTER)
    assert column(browser, 0)[0] == "Ramen"
    assert order(browser, 1) == "descending"


def test_numbers_sort_as_numbers_missing_ones_last_equal_ones_as_they_were(browser: Browser) -> None:
    """Minus ten below minus nine, unlike the words; what has no value stays at the end in both directions."""
    values = {"CLIP": "-10", "Tent": "-9", "SAR": "", "Ramen": "-9"}
    code = """
        for (const row of document.querySelector(arguments[0]).tBodies[0].rows) {
          const value = arguments[1][row.cells[0].textContent];
          if (value) row.cells[1].dataset.sort = value; else delete row.cells[1].dataset.sort;
        }"""
    browser.script(code, TABLE, values)
    browser.click(f"{head(1)} > button")
    assert column(browser, 0) == ["Tent", "Ramen", "CLIP", "Zero-shot", "SAR"]
    browser.click(f"{head(1)} > button")
    assert column(browser, 0) == ["CLIP", "Tent", "Ramen", "Zero-shot", "SAR"]


def test_the_filter_leaves_some_methods(browser: Browser) -> None:
    browser.keys("#filter", "tent, RAMEN")
    assert column(browser, 0) == ["Tent", "Ramen"]
    shown = browser.script(
        "return [...document.querySelectorAll('tr[data-method]')].filter(r => !r.hidden).length"
    )
    every = browser.script("return document.querySelectorAll('tr[data-method]').length")
    state = browser.script("return document.getElementById('filter-state').textContent")
    assert state == f"{shown} of {every} rows"
    assert shown < every


def test_a_name_leads_to_the_settings_and_opens_them(browser: Browser) -> None:
    anchor = browser.script("return document.querySelector(arguments[0] + ' tbody a').hash", TABLE)
    is_open = "return document.querySelector(arguments[0]).open"
    assert browser.script(is_open, anchor) is False
    browser.click(f"{TABLE} tbody a")
    assert browser.script(is_open, anchor) is True
    text = browser.script("return document.querySelector(arguments[0]).innerText", anchor)
    facts = "sha256:2|bicubic|a photo of a {}.|never within the stream|2.8.0|x86_64|0123abc"
    for setting in facts.split("|"):
        assert setting in text
    browser.script("document.querySelector(arguments[0]).open = false", anchor)
    browser.click(f"{TABLE} tbody a")  # the address is the same now, yet it must open again
    assert browser.script(is_open, anchor) is True


def test_a_seed_leads_to_its_run(browser: Browser) -> None:
    link = f"{TABLE} tbody .seeds a:nth-child(2)"
    anchor = browser.script("return document.querySelector(arguments[0]).hash", link)
    browser.click(link)
    box = browser.script(
        "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", anchor
    )
    assert box["height"] > 0
    assert 0 <= box["top"] < 900


def test_copying_gives_the_table_as_it_is_shown_with_exact_numbers(browser: Browser, page: Path) -> None:
    browser.devtools("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    browser.click(f"{head(1)} > button")
    browser.keys("#filter", "sar, ramen")
    browser.click(f"button[data-table='{TABLE[1:]}']")
    text = browser.script("return navigator.clipboard.readText()")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["Method"] for row in rows] == ["Ramen", "SAR"]
    values = [sample_result("ramen", seed=seed, average=66.0)["scores"]["average"] for seed in range(2)]
    assert float(rows[0]["Average"]) == pytest.approx(sum(values) / 2, abs=1e-12)
    assert float(rows[0]["Average deviation"]) == pytest.approx(
        abs(values[0] - values[1]) / 2**0.5, abs=1e-12
    )
    assert float(rows[0]["Above zero-shot margin"]) == 0.8


def test_copying_works_where_the_clipboard_is_refused(browser: Browser) -> None:
    refuse = "navigator.clipboard.writeText = () => Promise.reject(new Error('refused'))"
    keep = "document.addEventListener('copy', () => { window.copied = document.activeElement.value })"
    browser.script(f"{refuse}; {keep}")
    browser.click(f"button[data-table='{TABLE[1:]}']")
    assert browser.script("return window.copied").startswith("Method,Average,Average deviation,")


def test_every_figure_is_there(browser: Browser) -> None:
    browser.script("document.querySelectorAll('details').forEach(block => { block.open = true })")
    code = "return [...document.images].map(i => [i.naturalWidth, i.width, i.height, i.alt])"
    figures = browser.script(code)
    assert len(figures) >= 10
    for natural, width, height, alt in figures:
        assert min(natural, width, height) > 100, alt
        assert alt


@pytest.mark.parametrize("width", [1280, 420])
def test_the_body_never_scrolls_sideways(browser: Browser, width: int) -> None:
    browser.script("document.querySelectorAll('details').forEach(block => { block.open = true })")
    browser.resize(width, 900)
    assert browser.script("return window.innerWidth") == width
    assert browser.script("return document.documentElement.scrollWidth") <= width
    table = browser.script("return document.querySelector(arguments[0]).getBoundingClientRect().width", TABLE)
    assert table > 300


def test_it_follows_the_readers_dark_mode(browser: Browser) -> None:
    assert browser.background_colours() == ("rgb(255, 255, 255)", "rgb(20, 23, 26)")


@pytest.fixture
def wide_page(window: Browser, tmp_path: Path) -> Browser:
    """A page with the tiny data set's 18 domains."""
    runs = [sample_result(method, domains=DOMAINS) for method in ("tent", "ramen")]
    for number, run in enumerate(runs):
        write_result(tmp_path / f"{number}.json", run)
    write_report([tmp_path], tmp_path / "report.html")
    window.resize(1280, 900)
    window.open(tmp_path / "report.html")
    return window


# Whether the box of an element can be scrolled, whether its hint is seen, and whether its edge fades out.
BOX = """
    const box = document.querySelector(arguments[0]).closest(".wide");
    const [hint, content] = box.children;
    return [
      content.scrollWidth > content.clientWidth + 1,
      getComputedStyle(hint).display !== "none" && getComputedStyle(hint).visibility === "visible",
      getComputedStyle(content).maskImage !== "none",
    ];"""


def settled(browser: Browser) -> None:
    """Wait until the page has reacted: two frames."""
    frames = "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))"
    wait = {"expression": f"new Promise(done => {frames})", "awaitPromise": True}
    browser.devtools("Runtime.evaluate", wait)


def test_a_table_that_is_cut_says_so(wide_page: Browser) -> None:
    settled(wide_page)
    assert wide_page.script(BOX, TABLE) == [True, True, True]
    assert wide_page.script(BOX, "#overview-table") == [False, False, False]
    # The names stay while the rest moves; at the end there is no more to hint at.
    left = "return document.querySelector(arguments[0] + ' tbody th').getBoundingClientRect().left"
    before = wide_page.script(left, TABLE)
    wide_page.script("document.querySelector(arguments[0]).closest('.scroll').scrollLeft = 1e6", TABLE)
    settled(wide_page)
    assert wide_page.script(BOX, TABLE) == [True, False, False]
    assert wide_page.script(left, TABLE) == before


def test_figures_on_a_phone_scroll_and_say_so(wide_page: Browser) -> None:
    assert wide_page.script(BOX, "img") == [False, False, False]
    wide_page.resize(390, 844)
    settled(wide_page)
    assert wide_page.script(BOX, "img") == [True, True, True]
    assert wide_page.script("return document.documentElement.scrollWidth") <= 390
    wide_page.script("document.querySelector('.picture').scrollLeft = 1e6")
    settled(wide_page)
    assert wide_page.script(BOX, "img") == [True, False, False]
