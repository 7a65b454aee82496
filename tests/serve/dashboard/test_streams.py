"""The list of streams."""

from urllib.parse import parse_qs, urlsplit

from tests.fakes.http_service import FakeService
from tests.helpers.webdriver import ENTER, Browser

STREAM_NAMES = [f"camera-{number:02d}" for number in range(30)]


def names(browser: Browser) -> list[str]:
    return browser.texts("#stream-table tbody .name")


def test_streams_are_shown_a_page_at_a_time(browser: Browser, service: FakeService) -> None:
    service.streams.clear()
    service.add(*STREAM_NAMES)
    browser.script("streamList.turn([''])")
    browser.shows("#place", "1 to 12 of 40")
    assert names(browser) == STREAM_NAMES[:12]
    browser.click("#next")
    browser.shows("#place", "13 to 24")
    assert names(browser) == STREAM_NAMES[12:24]
    browser.click("#next")
    browser.shows("#place", "25 to 30")
    assert browser.script("return document.getElementById('next').ariaDisabled") == "true"
    browser.click("#next")
    browser.click("#previous")
    browser.shows("#place", "13 to 24")
    for name in STREAM_NAMES[10:]:
        del service.streams[name]
    browser.script("streamList.poll()")
    browser.wait("document.querySelectorAll('#stream-table tbody tr').length === 10")
    assert names(browser) == STREAM_NAMES[:10]


def test_streams_are_found_by_the_start_of_their_name(browser: Browser, service: FakeService) -> None:
    browser.keys("#prefix", "camera-")
    browser.wait("document.querySelectorAll('#stream-table tbody tr').length === 2")
    assert names(browser) == ["camera-1", "camera-2"]
    last = parse_qs(urlsplit([path for path in service.sent("GET") if "prefix" in path][-1]).query)
    assert last == {"limit": ["12"], "prefix": ["camera-"]}
    browser.keys("#prefix", "x&limit=<b>")
    browser.shows("#no-streams", "No stream starts with camera-x&limit=<b>.")


def test_heads_sort_the_page(browser: Browser, service: FakeService) -> None:
    service.streams["door"].update(images=7, changed=7, last_used=3_000.0)
    service.streams["camera-1"].update(images=100, changed=1)
    browser.script("streamList.poll()")
    browser.shows("#stream-table", "100.0 %")
    for column, order in {
        "images": ["camera-2", "camera-1", "door"],
        "changed": ["door", "camera-2", "camera-1"],
        "used": ["door", "camera-1", "camera-2"],
        "name": ["camera-1", "camera-2", "door"],
    }.items():
        head = f"th[data-column={column}]"
        browser.keys(f"{head} > button", ENTER)
        assert names(browser) == order
        first = browser.script("return document.querySelector(arguments[0]).ariaSort", head)
        assert first == ("ascending" if column == "name" else "descending")
        browser.click(f"{head} > button")
        assert names(browser) == order[::-1]
    assert len(browser.script("return [...document.querySelectorAll('th[aria-sort$=ending]')]")) == 1


def test_a_row_keeps_the_focus_while_the_list_is_refreshed(browser: Browser, service: FakeService) -> None:
    browser.script("document.querySelector('[data-stream=door] button').focus()")
    service.add("an-earlier-one")
    browser.script("streamList.poll()")
    browser.shows("#stream-table", "an-earlier-one")
    assert browser.script("return document.activeElement.innerText") == "door"


def test_no_streams_at_all(window: Browser, service: FakeService) -> None:
    service.streams.clear()
    window.open(service.url)
    window.shows("#no-streams", "There are no streams yet")
    assert f"curl -F files=@image.jpg {service.url}v1/streams/camera-1/classify" in window.text("#no-streams")
    assert window.text("#selected-title") == "No stream is selected"
