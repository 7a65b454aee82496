"""The token, and text of strangers."""

import json

from tests.fakes.http_service import FakeService, statistics, stream_activity
from tests.helpers.given_images import drop_image
from tests.helpers.webdriver import ENTER, Browser


def test_a_token_is_asked_for_and_kept_in_this_tab(window: Browser, service: FakeService) -> None:
    service.token = "s3cret"
    service.publish(statistics())
    window.open(service.url)
    window.shows("#access-why", "The service asks for a token.")
    assert window.focused() == "token"
    window.shows("#connection-state", "Waiting for a token")
    window.keys("#token", "wrong" + ENTER)
    window.shows("#access-why", "The service does not accept this token.")
    window.keys("#token", "s3cret" + ENTER)
    window.shows("#connection-state", "Live")
    window.shows("#numbers", "12,345")
    assert window.script("return document.getElementById('access').hidden") is True
    assert window.script("return JSON.stringify(sessionStorage)") == json.dumps(
        {"ramen-token": "s3cret"}, separators=(",", ":")
    )
    assert window.script("return [localStorage.length, document.cookie, location.search]") == [0, "", ""]
    assert "s3cret" not in window.script("return document.documentElement.outerHTML")
    window.click("#forget-token")
    window.shows("#connection-state", "Waiting for a token")
    assert window.script("return sessionStorage.length") == 0


def test_a_token_without_the_right_to_figures(window: Browser, service: FakeService) -> None:
    service.failures["GET", "/v1/events"] = (403, "the token needs the scope metrics or manage", {})
    window.open(service.url)
    window.shows("#connection-state", "No access to the figures")
    window.shows(
        "#now-message", "The token does not allow this: the token needs the scope metrics or manage."
    )
    window.shows("#numbers", "12,345")


HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=2</script>'


def test_text_of_strangers_stays_text(browser: Browser, service: FakeService) -> None:
    service.add(HOSTILE, classes=[HOSTILE], method=HOSTILE, recovered=HOSTILE, last_used=5_000.0)
    image = {
        "key": HOSTILE + "\u202egpj.exe",
        "label": HOSTILE,
        "zero_shot_label": HOSTILE,
        "thumbnail": HOSTILE,
    }
    activity = stream_activity(changed_images=1, class_mix=[[HOSTILE, 3]])
    activity["changed_images"][0].update(image)
    service.activities[HOSTILE] = activity
    service.answer = {
        "label": HOSTILE,
        "zero_shot_label": HOSTILE,
        "top": [{"label": HOSTILE, "probability": 1}],
    }
    images = browser.script("return document.querySelectorAll('img').length")
    browser.script("return streamList.poll()")
    browser.script("selected.choose(arguments[0], true)", HOSTILE)
    browser.shows("#mix", HOSTILE)
    browser.shows("#changed", HOSTILE[:60])
    assert "\\u202e" in browser.script("return document.querySelector('#changed .file').title")
    drop_image(browser, HOSTILE.replace("/", "_"), "#drop")
    browser.shows(".answers", HOSTILE[:60])
    service.failures["POST", "/v1/streams/dashboard/classify"] = (422, HOSTILE, {})
    drop_image(browser, "a.png", "#drop")
    browser.shows("#try-message", HOSTILE)
    browser.click("[data-action=delete]")
    assert HOSTILE in browser.text("#confirm-title")
    assert browser.script("return window.hit") is None
    assert browser.script("return document.querySelectorAll('main script, dialog img').length") == 0
    assert browser.script("return document.querySelectorAll('img').length") == images - 3 + 1 + 1
    assert browser.script("return document.querySelector('#changed img').getAttribute('src')") == "data:,"


def test_the_policy_refuses_markup(browser: Browser) -> None:
    code = "try { document.querySelector('h1').innerHTML = '<b>x</b>' } catch (error) { return error.name }"
    assert browser.script(code) == "TypeError"
