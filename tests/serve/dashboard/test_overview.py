"""The figures of the whole service, their charts, and the connection that brings them."""

import pytest

from tests.fakes.http_service import FakeService, statistics
from tests.helpers.webdriver import Browser


def tile(browser: Browser, title: str) -> str:
    code = "return [...document.querySelectorAll('.tile')].find(t => t.innerText.startsWith(arguments[0]))"
    lines = browser.script(f"{code}.innerText", title).replace("\xa0", " ").split("\n")
    return "\n".join(line for line in lines if line)


def test_it_loads_without_errors_and_asks_its_own_server_alone(window: Browser, service: FakeService) -> None:
    window.requests()
    window.log("browser")
    service.publish(statistics())
    window.open(service.url)
    window.shows(
        "#facts", "method ramen · 6 classes · images of 224 \N{MULTIPLICATION SIGN} 224 · cuda:0, float16"
    )
    window.wait("!document.getElementById('selected-body').hidden")
    assert window.text("h1") == "ViT-B-16/openai"
    assert window.log("browser") == []
    asked = [url for url in window.requests() if not url.startswith(("data:", "chrome:"))]
    assert [url for url in asked if not url.startswith(service.url)] == []
    assert len(asked) >= 6


def test_figures_of_the_service(browser: Browser, service: FakeService) -> None:
    service.publish(statistics(images=2_000_000, changed=100_000, overloaded=2, store_failures=1))
    browser.shows("#counters", "2,000,000 images in 310,220 requests")
    assert tile(browser, "Images per second").split("\n")[1] == "240"
    for part in ("p50", "14.0 ms", "p90", "21.0 ms", "p99", "33.6 ms"):
        assert part in tile(browser, "Latency")
    assert "of at most 32" in tile(browser, "Images per batch")
    assert "24" in tile(browser, "Waiting images")
    assert "of at most 1,024" in tile(browser, "Waiting images")
    assert "of at most 256 MiB" in tile(browser, "Waiting bytes")
    assert "of 40 streams" in tile(browser, "Streams in memory")
    assert "of at most 1 GiB" in tile(browser, "Memory of streams")
    assert "5.0 % since the start" in tile(browser, "Changed answers")
    assert "2\nsince the start" in tile(browser, "Refused: overloaded")
    assert "1 time a state could not be written" in browser.text("#now-message")


def test_charts_keep_two_minutes_and_label_their_axis(browser: Browser, service: FakeService) -> None:
    service.publish(*(statistics(n, images_per_second=10 if n == 5 else n) for n in range(1, 131)))
    browser.shows(".tile strong", "130")
    path = browser.script("return document.querySelector('.tile .line').getAttribute('d')")
    assert path.startswith("M0 ")
    assert path.count("L") == 119
    assert browser.text(".tile .axis") == "200\n0"
    label = browser.script("return document.querySelector('.tile svg').getAttribute('aria-label')")
    assert label == "Images per second, the last two minutes: from 11.0 to 130, now 130"


def test_seconds_without_figures_are_a_gap(browser: Browser) -> None:
    code = """
        const path = arguments[0];
        return new Chart({title: "t", lines: [""], format: rate}).path(path, 10);"""
    assert (
        browser.script(code, [5, 10, None, None, 0, None, 2])
        == "M113 50.00L114 0.00M117 100.00h-0.5M119 80.00h-0.5"
    )


def test_a_service_that_starts_anew_shows_no_negative_rates(browser: Browser, service: FakeService) -> None:
    service.publish(statistics(expired=50, images=500), statistics(expired=0, images=3, changed=1))
    browser.shows("#counters", "3 images")
    assert tile(browser, "Expired").split("\n")[1] == "0"
    lines = browser.script(
        "return [...document.querySelectorAll('.tile .line')].map(l => l.getAttribute('d'))"
    )
    heights = [
        float(pair.split()[1])
        for d in lines
        for pair in d.replace("L", "M").split("M")[1:]
        if "h" not in pair
    ]
    assert heights
    assert all(0 <= height <= 100 for height in heights)


def test_nothing_moves_when_numbers_do(window: Browser, service: FakeService) -> None:
    boxes = """
        const parts = ".tile, .tile h3, .value, .tile .meter, .chart, .axis, .tile svg, #streams-title";
        return [...document.querySelectorAll(parts)].map((part) => {
          const box = part.getBoundingClientRect();
          return [part.className, box.top, box.left, box.width, box.height];
        })"""
    for width in (1280, 390):
        window.resize(width, 900)
        window.open(service.url)
        window.shows("#facts", "method ramen")
        before = window.script(boxes)
        large = {"images_per_second": 123_456.7, "latency_ms": {"p50": 1.23, "p90": 4_567.8, "p99": 98_765.4}}
        service.publish(statistics(**large, overloaded=123_456_789))
        window.shows(".tile strong", "123,457")
        assert window.script(boxes) == before
        service.published.clear()


def test_it_says_that_the_connection_is_lost_and_comes_back(browser: Browser, service: FakeService) -> None:
    service.drop_events()
    browser.shows("#connection-state", "Connection lost")
    browser.wait("/next try in \\d+ s/.test(document.getElementById('connection-wait').textContent)")
    browser.shows("#now-message", "The service cannot answer now: the service is being stopped.")
    service.accepts_events = True
    browser.shows("#connection-state", "Live")
    assert browser.text("#now-message") == ""
    service.drop_events()
    browser.shows("#connection-state", "Connection lost")
    service.accepts_events = True
    browser.click("#reconnect")
    browser.shows("#connection-state", "Live")


def test_a_connection_that_falls_silent_is_lost(browser: Browser) -> None:
    browser.script("live.silence = 100; live.waits = [3600]; live.restart()")
    browser.shows("#connection-state", "Connection lost")


def test_waits_grow(browser: Browser, service: FakeService) -> None:
    browser.script("window.waited = []; live.wait = (seconds) => window.waited.push(seconds)")
    service.drop_events()
    for number in range(1, 9):
        browser.wait("window.waited.length === arguments[0]", number)
        browser.script("live.connect()")
    waits = browser.script("return window.waited")
    for seconds, expected in zip(waits, [1, 2, 4, 8, 16, 30, 30, 30], strict=False):
        assert 0.9 * expected <= seconds <= 1.1 * expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_cut_at_any_byte(browser: Browser, size: int) -> None:
    stream = ': hello\r\n\r\nevent: statistics\r\ndata: {"a":\r\ndata:1}\r\n\r\ndata: x: y\n\n'
    stream += "event: nothing\n\nid: 3\ndata\n\n"
    code = """
        const found = [];
        const parse = makeEventParser((name, data) => found.push([name, data]));
        const [text, size] = arguments;
        for (let at = 0; at < text.length; at += size) parse(text.slice(at, at + size));
        return found;"""
    events = [["statistics", '{"a":\n1}'], ["message", "x: y"], ["message", ""]]
    assert browser.script(code, stream, size) == events
