"""How the page looks and what assistive programs find in it: sizes, colours, focus, names."""

from itertools import pairwise
from typing import Any

import pytest

from tests.fakes.http_service import FakeService, changed_image, statistics, stream_activity, stream_info
from tests.helpers.given_images import drop_image
from tests.helpers.webdriver import TAB, Browser
from tests.oracles.text_contrast import text_contrasts

LONG_NAME = "a-very-long-name.without_any-blank-in-it." + 22 * "x"
LONG_LABEL = "Pneumonoultramicroscopicsilicovolcanoconiosis" * 3


@pytest.fixture(params=["full", "empty", "refused"])
def state(request: pytest.FixtureRequest, service: FakeService) -> str:
    """What the service holds: much, with long names; nothing; or nothing without a token."""
    if request.param == "full":
        many = {"images": 123_456_789, "changed": 23_456_789, "fallbacks": 123_456, "errors": 7_890}
        service.add(*(f"camera-{number:02d}" for number in range(30)), **many, last_used=1_000.0)
        feedback = {"labels": 412_345, "correct": 340_000, "zero_shot_correct": 301_000, "unknown": 3}
        others = {
            "feedback": feedback,
            "accuracy": 0.8246,
            "zero_shot_accuracy": 0.73,
            "recovered": LONG_LABEL,
        }
        service.streams[LONG_NAME] = stream_info(LONG_NAME, **many, **others)
        changed = [changed_image(n, key=f"{LONG_LABEL}/{n}.jpg", label=LONG_LABEL) for n in range(9)]
        mix = [[LONG_LABEL, 500], ["cat", 3]]
        service.activities[LONG_NAME] = stream_activity(changed_images=0, class_mix=mix) | {
            "changed_images": changed
        }
        service.answer = {"label": LONG_LABEL, "top": [{"label": LONG_LABEL, "probability": 0.5}]}
        service.publish(
            *(statistics(n, overloaded=3 * n, store_failures=2, waiting_images=1000) for n in range(99))
        )
    else:
        service.streams.clear()
        service.publish(
            statistics(images=0, images_per_second=0, latency_ms={}, compute_ms={}, mean_batch=None)
        )
    service.token = "secret" if request.param == "refused" else None
    return str(request.param)


def show(window: Browser, service: FakeService, state: str, width: int, scheme: str | None = None) -> None:
    window.resize(width, 900)
    window.prefer(scheme)
    window.open(service.url)
    if state == "refused":
        window.wait("document.getElementById('access-why').textContent")
        return
    window.wait("document.getElementById('connection').dataset.state === 'live'")
    if state == "empty":
        window.wait("!document.getElementById('no-streams').hidden")
        return
    window.wait("!document.getElementById('selected-body').hidden")
    drop_image(window, f"{LONG_LABEL}.png", "#drop")
    window.wait("document.querySelector('.answer img')")


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_nothing_is_cut_or_scrolls_sideways(
    window: Browser, service: FakeService, state: str, width: int
) -> None:
    show(window, service, state, width)
    if state == "full":
        window.click("[data-action=delete]")
    assert window.script("return window.innerWidth") == width
    assert window.script("return document.documentElement.scrollWidth") <= width
    code = """
        const found = [];
        for (const part of document.querySelectorAll("header *, main *, dialog *")) {
          const style = getComputedStyle(part);
          if (part.closest(".hidden, svg") || style.display === "inline") continue;
          const box = part.getBoundingClientRect();
          const cut = part.scrollWidth > part.clientWidth + 1 && style.overflowX !== "visible";
          const outside = box.right > document.documentElement.clientWidth + 1 || box.left < -1;
          const over = part.children.length === 0 && part.scrollWidth > part.clientWidth + 1;
          if (!box.width || !(cut || outside || over)) continue;
          found.push([part.tagName, part.id, part.className, part.textContent]);
        }
        return found;"""
    assert window.script(code) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(window: Browser, service: FakeService, state: str, scheme: str) -> None:
    show(window, service, state, 1280, scheme)
    found = text_contrasts(window)
    assert len(found) > 40
    assert [one for one in found if one[2] < 4.5] == []


def test_the_measure_of_contrast_finds_grey_on_grey(browser: Browser) -> None:
    """The oracle itself: black on white is 21, and #767676 on white is 4.54 by the definition."""
    browser.prefer("light")
    code = (
        "const head = document.querySelector('h1'); head.className = 'probe'; head.style.color = arguments[0]"
    )
    for colour, expected in (("#000000", 21.0), ("#767676", 4.54), ("#8a8a8a", 3.45)):
        browser.script(code, colour)
        [value] = [ratio for _, kind, ratio in text_contrasts(browser) if kind == "probe"]
        assert value == pytest.approx(expected, abs=0.01)


def test_it_follows_the_readers_dark_mode(browser: Browser) -> None:
    assert browser.background_colours() == ("rgb(255, 255, 255)", "rgb(20, 23, 26)")


def test_nothing_moves_for_readers_who_do_not_want_it(browser: Browser) -> None:
    code = "return getComputedStyle(document.querySelector('.meter > span')).transitionDuration"
    assert browser.script(code) == "0.4s"
    feature = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.devtools("Emulation.setEmulatedMedia", {"features": [feature]})
    assert browser.script(code) == "0s"
    assert browser.script("return isCalm()") is True


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(
    window: Browser, service: FakeService
) -> None:
    service.add(*(f"camera-{number:02d}" for number in range(30)))
    service.publish(statistics())
    show(window, service, "full", 1280)
    code = """
        const found = document.querySelectorAll("a[href], button, input");
        return [...found].filter(one => one.checkVisibility() && !one.closest("dialog, .hidden"))
          .map(one => (one.dataset.place = [...found].indexOf(one)))"""
    controls = window.script(code)
    assert len(controls) > 15
    window.script("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached: list[int] = []
    for _ in controls:
        window.press(TAB)
        focus = """
            const { dataset } = document.activeElement;
            const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
            return [Number(dataset.place), outlineStyle, parseFloat(outlineWidth)]"""
        place, style, width = window.script(focus)
        assert style != "none"
        assert width >= 1.5
        reached.append(place)
    assert reached == controls


def accessible_nodes(browser: Browser) -> list[dict[str, Any]]:
    browser.devtools("Accessibility.enable", {})
    nodes = browser.devtools("Accessibility.getFullAXTree", {})["nodes"]
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            **{one["name"]: one["value"].get("value") for one in node.get("properties", [])},
        }
        for node in nodes
        if not node["ignored"]
    ]


def test_screen_readers_find_names_landmarks_and_live_parts(window: Browser, service: FakeService) -> None:
    service.add(*(f"camera-{number:02d}" for number in range(30)))
    service.publish(statistics())
    show(window, service, "full", 1280)
    nodes = accessible_nodes(window)
    roles = {node["role"] for node in nodes}
    assert {
        "banner",
        "main",
        "region",
        "navigation",
        "table",
        "columnheader",
        "rowheader",
        "article",
    } <= roles
    named = (
        "button",
        "textbox",
        "searchbox",
        "region",
        "navigation",
        "table",
        "article",
        "heading",
        "columnheader",
    )
    assert [node for node in nodes if node["role"] in named and not node["name"].strip()] == []
    charts = [node["name"] for node in nodes if node["role"] == "image" and "two minutes" in node["name"]]
    assert len(charts) == 12
    spoken = charts[1].replace("\xa0", " ")
    assert spoken.startswith(
        "Latency, the last two minutes: p50 from 14.0 ms to 14.0 ms, now 14.0 ms; p90 from 21.0 ms"
    )
    live = [node for node in nodes if node["role"] == "status"]
    assert len(live) >= 3
    assert {node["live"] for node in live} == {"polite"}
    assert [node["name"] for node in nodes if node["role"] == "button" and "Delete" in node["name"]] == [
        "Delete"
    ]


def test_headings_form_an_outline(browser: Browser) -> None:
    code = """
        const found = [...document.querySelectorAll("h1, h2, h3, h4")];
        return found.filter((head) => head.checkVisibility()).map((head) => head.tagName);"""
    levels = [int(tag[1]) for tag in browser.script(code)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_dialog_is_announced_with_what_it_asks(browser: Browser) -> None:
    browser.click("[data-action=reset]")
    [dialog] = [node for node in accessible_nodes(browser) if node["role"] == "dialog"]
    assert dialog["name"] == "Reset camera-1?"
    assert dialog["modal"] is True
