"""What the page does, in a real Chromium, with a service that does as the test says."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from tests.fakes.http_service import FakeService, statistics, stream_activity
from tests.helpers.webdriver import ENTER, ESCAPE, TAB, Browser

STREAM_NAMES = [f"camera-{number:02d}" for number in range(30)]
FOCUS = "return document.activeElement.id || document.activeElement.dataset.action"


def text(browser: Browser, css: str) -> str:
    return browser.script("return document.querySelector(arguments[0]).innerText", css).replace("\xa0", " ")


def texts(browser: Browser, css: str) -> list[str]:
    found = browser.script("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", css)
    return [one.replace("\xa0", " ") for one in found]


def shows(browser: Browser, css: str, words: str) -> None:
    """Wait until an element says something."""
    browser.wait(
        "document.querySelector(arguments[0]).textContent.replaceAll('\\u00a0', ' ').includes(arguments[1])",
        css,
        words,
    )


def tile(browser: Browser, title: str) -> str:
    code = "return [...document.querySelectorAll('.tile')].find(t => t.innerText.startsWith(arguments[0]))"
    lines = browser.script(f"{code}.innerText", title).replace("\xa0", " ").split("\n")
    return "\n".join(line for line in lines if line)


def sent(service: FakeService, verb: str) -> list[str]:
    return [path for one, path, _ in service.requests if one == verb]


# -- the whole service ----------------------------------------------------------------------------------


def test_it_loads_without_errors_and_asks_its_own_server_alone(window: Browser, service: FakeService) -> None:
    window.requests()
    window.log("browser")
    service.publish(statistics())
    window.open(service.url)
    shows(window, "#facts", "method ramen · 6 classes · images of 224 × 224 · cuda:0, float16")
    window.wait("!document.getElementById('selected-body').hidden")
    assert text(window, "h1") == "ViT-B-16/openai"
    assert window.log("browser") == []
    asked = [url for url in window.requests() if not url.startswith(("data:", "chrome:"))]
    assert [url for url in asked if not url.startswith(service.url)] == []
    assert len(asked) >= 6


def test_figures_of_the_service(browser: Browser, service: FakeService) -> None:
    service.publish(statistics(images=2_000_000, changed=100_000, overloaded=2, store_failures=1))
    shows(browser, "#counters", "2,000,000 images in 310,220 requests")
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
    assert "1 time a state could not be written" in text(browser, "#now-message")


def test_charts_keep_two_minutes_and_label_their_axis(browser: Browser, service: FakeService) -> None:
    service.publish(*(statistics(n, images_per_second=10 if n == 5 else n) for n in range(1, 131)))
    shows(browser, ".tile strong", "130")
    path = browser.script("return document.querySelector('.tile .line').getAttribute('d')")
    assert path.startswith("M0 ")
    assert path.count("L") == 119
    assert text(browser, ".tile .axis") == "200\n0"
    label = browser.script("return document.querySelector('.tile svg').getAttribute('aria-label')")
    assert label == "Images per second, the last two minutes: from 11.0 to 130, now 130"


def test_seconds_without_figures_are_a_gap(browser: Browser) -> None:
    code = """
        const path = arguments[0];
        return new Chart({title: "t", lines: [""], format: rate}).path(path, 10);"""
    assert browser.script(code, [5, 10, None, None, 0, None, 2]) == "M113 50.00L114 0.00M117 100.00h-0.5M119 80.00h-0.5"


def test_a_service_that_starts_anew_shows_no_negative_rates(browser: Browser, service: FakeService) -> None:
    service.publish(statistics(expired=50, images=500), statistics(expired=0, images=3, changed=1))
    shows(browser, "#counters", "3 images")
    assert tile(browser, "Expired").split("\n")[1] == "0"
    lines = browser.script("return [...document.querySelectorAll('.tile .line')].map(l => l.getAttribute('d'))")
    heights = [float(pair.split()[1]) for d in lines for pair in d.replace("L", "M").split("M")[1:] if "h" not in pair]
    assert heights
    assert all(0 <= height <= 100 for height in heights)


def test_nothing_moves_when_numbers_do(window: Browser, service: FakeService) -> None:
    boxes = """
        const parts = ".tile, .tile h3, .value, .tile .meter, .chart, .axis, .tile svg, #streams";
        return [...document.querySelectorAll(parts)].map((part) => {
          const box = part.getBoundingClientRect();
          return [part.className, box.top, box.left, box.width, box.height];
        })"""
    for width in (1280, 390):
        window.resize(width, 900)
        window.open(service.url)
        shows(window, "#facts", "method ramen")
        before = window.script(boxes)
        large = {"images_per_second": 123_456.7, "latency_ms": {"p50": 1.23, "p90": 4_567.8, "p99": 98_765.4}}
        service.publish(statistics(**large, overloaded=123_456_789))
        shows(window, ".tile strong", "123,457")
        assert window.script(boxes) == before
        service.published.clear()


def test_it_says_that_the_connection_is_lost_and_comes_back(browser: Browser, service: FakeService) -> None:
    service.drop_events()
    shows(browser, "#connection-state", "Connection lost")
    browser.wait("/next try in \\d+ s/.test(document.getElementById('connection-wait').textContent)")
    shows(browser, "#now-message", "The service cannot answer now: the service is being stopped.")
    service.accepts_events = True
    shows(browser, "#connection-state", "Live")
    assert text(browser, "#now-message") == ""
    service.drop_events()
    shows(browser, "#connection-state", "Connection lost")
    service.accepts_events = True
    browser.click("#reconnect")
    shows(browser, "#connection-state", "Live")


def test_a_connection_that_falls_silent_is_lost(browser: Browser) -> None:
    browser.script("live.silence = 100; live.waits = [3600]; live.restart()")
    shows(browser, "#connection-state", "Connection lost")


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
    stream = ': hello\r\n\r\nevent: statistics\r\ndata: {"a":\r\ndata:1}\r\n\r\ndata: x: y\n\nevent: e\n\nid: 3\ndata\n\n'
    code = """
        const found = [];
        const parse = makeEventParser((name, data) => found.push([name, data]));
        for (let at = 0; at < arguments[0].length; at += arguments[1]) parse(arguments[0].slice(at, at + arguments[1]));
        return found;"""
    events = [["statistics", '{"a":\n1}'], ["message", "x: y"], ["message", ""]]
    assert browser.script(code, stream, size) == events


# -- streams --------------------------------------------------------------------------------------------


def names(browser: Browser) -> list[str]:
    return texts(browser, "#stream-table tbody .name")


def test_streams_are_shown_a_page_at_a_time(browser: Browser, service: FakeService) -> None:
    service.streams.clear()
    service.add(*STREAM_NAMES)
    browser.script("streamList.turn([''])")
    shows(browser, "#place", "1 to 12 of 40")
    assert names(browser) == STREAM_NAMES[:12]
    browser.click("#next")
    shows(browser, "#place", "13 to 24")
    assert names(browser) == STREAM_NAMES[12:24]
    browser.click("#next")
    shows(browser, "#place", "25 to 30")
    assert browser.script("return document.getElementById('next').ariaDisabled") == "true"
    browser.click("#next")
    browser.click("#previous")
    shows(browser, "#place", "13 to 24")
    for name in STREAM_NAMES[10:]:
        del service.streams[name]
    browser.script("streamList.poll()")
    browser.wait("document.querySelectorAll('#stream-table tbody tr').length === 10")
    assert names(browser) == STREAM_NAMES[:10]


def test_streams_are_found_by_the_start_of_their_name(browser: Browser, service: FakeService) -> None:
    browser.keys("#prefix", "camera-")
    browser.wait("document.querySelectorAll('#stream-table tbody tr').length === 2")
    assert names(browser) == ["camera-1", "camera-2"]
    last = parse_qs(urlsplit([path for path in sent(service, "GET") if "prefix" in path][-1]).query)
    assert last == {"limit": ["12"], "prefix": ["camera-"]}
    browser.keys("#prefix", "x&limit=<b>")
    shows(browser, "#no-streams", "No stream starts with camera-x&limit=<b>.")


def test_heads_sort_the_page(browser: Browser, service: FakeService) -> None:
    service.streams["door"].update(images=7, changed=7, last_used=3_000.0)
    service.streams["camera-1"].update(images=100, changed=1)
    browser.script("streamList.poll()")
    shows(browser, "#stream-table", "100.0 %")
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
    shows(browser, "#stream-table", "an-earlier-one")
    assert browser.script("return document.activeElement.innerText") == "door"


def test_no_streams_at_all(window: Browser, service: FakeService) -> None:
    service.streams.clear()
    window.open(service.url)
    shows(window, "#no-streams", "There are no streams yet")
    assert f"curl -F files=@image.jpg {service.url}v1/streams/camera-1/classify" in text(window, "#no-streams")
    assert text(window, "#selected-title") == "No stream is selected"


def test_the_stream_used_last_is_selected_and_another_on_a_click(browser: Browser, service: FakeService) -> None:
    assert text(browser, "#selected-title") == "camera-1"
    browser.click("[data-stream=door] button")
    shows(browser, "#selected-title", "door")
    assert browser.script("return location.hash") == "#stream=door"
    assert texts(browser, "[aria-current=true]") == ["door"]
    service.streams["door"]["images"] = 77
    browser.open(service.url + "#stream=door")
    shows(browser, "#numbers", "77")


def test_what_is_shown_of_a_stream(browser: Browser, service: FakeService) -> None:
    assert texts(browser, "#numbers > div") == [
        "Images answered\n12,345\nnone failed",
        "Labels changed\n8.2 %\nof the last answers",
        "Mean entropy\n0.94 → 0.61\nbefore → after, in nats",
        "Memory\n68.3 %\n512 of 750 entries",
        "Accuracy\n–\nno true labels were sent",
    ]
    assert [row.split("\n") for row in texts(browser, "#mix li")][:2] == [["cat", "400 · 40.9 %"], ["dog", "200 · 20.4 %"]]
    cards = texts(browser, "#changed li")
    assert len(cards) == 3
    lines = [line for line in cards[1].split("\n") if line]
    assert lines[:7] == ["before", "dog", "33.0 %", "after", "fire truck", "60.0 %", "camera-1/00001.jpg"]
    browser.wait("[...document.querySelectorAll('#changed img')].every(image => image.naturalWidth === 96)")
    service.streams["camera-1"].update(
        feedback={"labels": 8, "correct": 6, "zero_shot_correct": 5, "unknown": 0},
        accuracy=0.75,
        zero_shot_accuracy=0.625,
        resident=False,
        entries=None,
        capacity=None,
        fallbacks=2,
        recovered="the last record was cut",
    )
    browser.script("selected.poll()")
    shows(browser, "#numbers", "2 fell back to zero-shot")
    assert texts(browser, "#numbers > div")[3:] == [
        "Memory\n–\nit is on disk",
        "Accuracy\n75.0 %\nzero-shot 62.5 %, 8 true labels",
    ]
    assert text(browser, "#selected-recovered") == "Repaired when it was read: the last record was cut"


def test_images_that_are_not_kept(browser: Browser, service: FakeService) -> None:
    browser.click("[data-stream=door] button")
    shows(browser, "#changed-note", "Not kept: start the service with --keep-changed")
    service.activities["door"] = stream_activity(changed_share=0.0)
    browser.script("selected.poll()")
    shows(browser, "#changed-note", "None among the last answers.")


def test_many_changed_images_are_shown_on_request(browser: Browser, service: FakeService) -> None:
    service.activities["camera-1"] = stream_activity(changed_images=11)
    browser.script("selected.poll()")
    browser.wait("document.querySelectorAll('#changed li').length === 8")
    assert text(browser, "#all-changed") == "Show all 11"
    browser.click("#all-changed")
    browser.wait("document.querySelectorAll('#changed li').length === 11")
    assert browser.script("return document.getElementById('all-changed').hidden") is True


def test_nothing_is_asked_while_nobody_looks(browser: Browser, service: FakeService) -> None:
    hide = """
        Object.defineProperty(document, "visibilityState", { value: arguments[0], configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));"""
    browser.script(hide, "hidden")
    browser.wait("live.asked === undefined && (live.asked = 1)")
    before = len(service.requests)
    browser.script("selected.poll(); streamList.poll()")
    browser.script("return new Promise((done) => setTimeout(done, 200))")
    assert len(service.requests) == before
    browser.script(hide, "visible")
    browser.script("return selected.poll()")
    assert len(service.requests) > before


# -- what an operator can do ----------------------------------------------------------------------------


def test_snapshot(browser: Browser, service: FakeService) -> None:
    browser.click("[data-action=snapshot]")
    shows(browser, "#selected-message", "Everything that camera-1 has learned is on disk.")
    assert sent(service, "POST") == ["/v1/streams/camera-1/snapshot"]


def test_reset_asks_first(browser: Browser, service: FakeService) -> None:
    browser.click("[data-action=reset]")
    assert text(browser, "#confirm-title") == "Reset camera-1?"
    browser.click("#confirm-no")
    browser.wait("!document.getElementById('confirm').open")
    assert sent(service, "POST") == []
    browser.click("[data-action=reset]")
    browser.click("#confirm-yes")
    shows(browser, "#selected-message", "camera-1 has forgotten what it had learned.")
    shows(browser, "#numbers", "0 of 750 entries")


def test_delete_asks_first_and_names_the_stream(browser: Browser, service: FakeService) -> None:
    browser.click("[data-action=delete]")
    assert text(browser, "#confirm-title") == "Delete camera-1?"
    assert "The stream camera-1 and everything that it has learned" in text(browser, "#confirm-text")
    browser.click("#confirm-yes")
    shows(browser, "#selected-outcome", "camera-1 is deleted.")
    assert "camera-1" not in service.streams
    browser.wait("document.querySelectorAll('#stream-table tbody tr').length === 2")
    assert text(browser, "#selected-title") == "No stream is selected"


def test_the_dialog_keeps_the_focus_and_closes_with_escape(browser: Browser, service: FakeService) -> None:
    browser.keys("[data-action=delete]", ENTER)
    visited = []
    for _ in range(5):
        visited.append(browser.script(FOCUS))
        browser.press(TAB)
    assert visited == ["confirm-no", "confirm-yes", "confirm-no", "confirm-yes", "confirm-no"]
    browser.press(ESCAPE)
    browser.wait("!document.getElementById('confirm').open")
    assert browser.script(FOCUS) == "delete"
    assert sent(service, "DELETE") == []


def test_an_action_that_fails_says_why(browser: Browser, service: FakeService) -> None:
    failure = (403, "the token needs the scope manage", {})
    service.failures["POST", "/v1/streams/camera-1/snapshot"] = failure
    browser.click("[data-action=snapshot]")
    shows(browser, "#selected-message", "The token does not allow this: the token needs the scope manage.")


def test_a_stream_that_somebody_else_deleted(browser: Browser, service: FakeService) -> None:
    del service.streams["camera-1"]
    browser.script("selected.poll()")
    shows(browser, "#selected-outcome", "There is no stream camera-1 (any more).")


# -- an image to try ------------------------------------------------------------------------------------

MAKE_FILE = """
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 8;
    canvas.toBlob((blob) => {
      const data = new DataTransfer();
      data.items.add(new File([blob], arguments_[0], { type: "image/png" }));
      %s
    });"""
DROP = """
    for (const kind of ["dragenter", "dragover", "drop"]) {
      const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
      document.querySelector(arguments_[1]).dispatchEvent(event);
    }"""
PASTE = """
    const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
    document.body.dispatchEvent(event);"""


def give(browser: Browser, how: str, *arguments: str) -> None:
    browser.script("const arguments_ = arguments;" + MAKE_FILE % how, *arguments)


@pytest.mark.parametrize("way", ["drop", "paste", "file"])
def test_an_image_is_tried_in_a_stream_of_its_own(
    browser: Browser, service: FakeService, tmp_path: Path, way: str
) -> None:
    if way == "file":
        Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
        browser.keys("#file", str(tmp_path / "image.png"))
    else:
        give(browser, DROP if way == "drop" else PASTE, "image.png", "#drop p")
    shows(browser, "#try-message", "image.png: cat, 62.0 %; changed from dog")
    assert sent(service, "POST") == ["/v1/streams/dashboard/classify"]
    body = next(body for verb, _, body in service.requests if verb == "POST")
    assert b'name="files"; filename="image.png"' in body
    assert b"\x89PNG" in body
    answer = text(browser, ".answer")
    for part in ("cat 62.0 %", "changed", "without adaptation: dog 41.0 %", "queued 3.2 ms", "computed 21.4 ms"):
        assert part in answer
    assert len(texts(browser, ".answer .bars li")) == 5
    browser.wait("document.querySelector('.answer img').naturalWidth === 8")
    assert text(browser, "#selected-title") == "camera-1"
    shows(browser, "#stream-table", "dashboard")


def test_a_file_that_misses_the_zone_is_not_opened(browser: Browser, service: FakeService) -> None:
    give(browser, DROP + "window.prevented = true;", "image.png", "h1")
    browser.wait("window.prevented")
    assert sent(service, "POST") == []


def test_an_image_is_tried_in_the_selected_or_in_a_new_stream(browser: Browser, service: FakeService) -> None:
    assert "dashboard learns from the image" in text(browser, "#try-note")
    browser.click("#try-selected")
    assert "The stream camera-1 learns from the image." in text(browser, "#try-note")
    give(browser, DROP, "a.png", "#drop")
    shows(browser, "#try-message", "a.png: cat")
    browser.script("document.getElementById('try-stream').value = ''")
    browser.keys("#try-stream", "new")
    give(browser, DROP, "b.png", "#drop")
    shows(browser, "#try-message", "b.png: cat")
    assert sent(service, "POST") == ["/v1/streams/camera-1/classify", "/v1/streams/new/classify"]
    browser.keys("#try-stream", "/../x")
    give(browser, DROP, "c.png", "#drop")
    shows(browser, "#try-message", "A stream's name has at most 64 letters")
    assert len(sent(service, "POST")) == 2


def test_an_answer_that_adaptation_did_not_change(browser: Browser, service: FakeService) -> None:
    service.answer = {"changed": False, "adapted": False, "zero_shot_label": "cat", "support": None}
    give(browser, DROP, "a.png", "#drop")
    shows(browser, ".answers", "The same without adaptation: cat 41.0 %")
    assert "not adapted: answered zero-shot" in text(browser, ".answer")


def test_an_image_that_cannot_be_decoded(browser: Browser, service: FakeService) -> None:
    service.answer = {"error": "image: it has no pixels", "label": None}
    give(browser, DROP, "a.png", "#drop")
    shows(browser, "#try-message", "a.png: image: it has no pixels")
    assert texts(browser, ".answer") == []


@pytest.mark.parametrize(
    ("status", "message", "headers", "words"),
    [
        (413, "the body has 70 MB; at most 64 MB", {}, "This is too large: the body has 70 MB; at most 64 MB."),
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
    give(browser, DROP, "a.png", "#drop")
    shows(browser, "#try-message", f"a.png: {words}")


def test_a_service_that_is_gone(browser: Browser) -> None:
    browser.script("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    give(browser, DROP, "a.png", "#drop")
    shows(browser, "#try-message", "a.png: The service cannot be reached.")
    browser.script("streamList.poll()")
    shows(browser, "#list-message", "The service cannot be reached.")


# -- the token, and strangers' text ---------------------------------------------------------------------


def test_a_token_is_asked_for_and_kept_in_this_tab(window: Browser, service: FakeService) -> None:
    service.token = "s3cret"
    service.publish(statistics())
    window.open(service.url)
    shows(window, "#access-why", "The service asks for a token.")
    assert window.script(FOCUS) == "token"
    shows(window, "#connection-state", "Waiting for a token")
    window.keys("#token", "wrong" + ENTER)
    shows(window, "#access-why", "The service does not accept this token.")
    window.keys("#token", "s3cret" + ENTER)
    shows(window, "#connection-state", "Live")
    shows(window, "#numbers", "12,345")
    assert window.script("return document.getElementById('access').hidden") is True
    assert window.script("return JSON.stringify(sessionStorage)") == json.dumps(
        {"ramen-token": "s3cret"}, separators=(",", ":")
    )
    assert window.script("return [localStorage.length, document.cookie, location.search]") == [0, "", ""]
    assert "s3cret" not in window.script("return document.documentElement.outerHTML")
    window.click("#forget-token")
    shows(window, "#connection-state", "Waiting for a token")
    assert window.script("return sessionStorage.length") == 0


def test_a_token_without_the_right_to_figures(window: Browser, service: FakeService) -> None:
    service.failures["GET", "/v1/events"] = (403, "the token needs the scope metrics or manage", {})
    window.open(service.url)
    shows(window, "#connection-state", "No access to the figures")
    shows(window, "#now-message", "The token does not allow this: the token needs the scope metrics or manage.")
    shows(window, "#numbers", "12,345")


HOSTILE = "<img src=x onerror=\"window.hit=1\"><script>window.hit=2</script>"


def test_text_of_strangers_stays_text(browser: Browser, service: FakeService) -> None:
    service.add(HOSTILE, classes=[HOSTILE], method=HOSTILE, recovered=HOSTILE, last_used=5_000.0)
    image = {"key": HOSTILE + "\u202egpj.exe", "label": HOSTILE, "zero_shot_label": HOSTILE, "thumbnail": HOSTILE}
    activity = stream_activity(changed_images=1, class_mix=[[HOSTILE, 3]])
    activity["changed_images"][0].update(image)
    service.activities[HOSTILE] = activity
    service.answer = {"label": HOSTILE, "zero_shot_label": HOSTILE, "top": [{"label": HOSTILE, "probability": 1}]}
    images = browser.script("return document.querySelectorAll('img').length")
    browser.script("return streamList.poll()")
    browser.script("selected.choose(arguments[0], true)", HOSTILE)
    shows(browser, "#mix", HOSTILE)
    shows(browser, "#changed", HOSTILE[:60])
    assert "\\u202e" in browser.script("return document.querySelector('#changed .file').title")
    give(browser, DROP, HOSTILE.replace("/", "_"), "#drop")
    shows(browser, ".answers", HOSTILE[:60])
    service.failures["POST", "/v1/streams/dashboard/classify"] = (422, HOSTILE, {})
    give(browser, DROP, "a.png", "#drop")
    shows(browser, "#try-message", HOSTILE)
    browser.click("[data-action=delete]")
    assert HOSTILE in text(browser, "#confirm-title")
    assert browser.script("return window.hit") is None
    assert browser.script("return document.querySelectorAll('main script, dialog img').length") == 0
    assert browser.script("return document.querySelectorAll('img').length") == images - 3 + 1 + 1
    assert browser.script("return document.querySelector('#changed img').getAttribute('src')") == "data:,"


def test_the_policy_refuses_markup(browser: Browser) -> None:
    code = "try { document.querySelector('h1').innerHTML = '<b>x</b>' } catch (error) { return error.name }"
    assert browser.script(code) == "TypeError"
