"""The selected stream, and what an operator can do with it."""

from tests.fakes.http_service import FakeService, stream_activity
from tests.helpers.webdriver import ENTER, ESCAPE, TAB, Browser

NONE = "\N{EN DASH}"


def test_the_stream_used_last_is_selected_and_another_on_a_click(
    browser: Browser, service: FakeService
) -> None:
    assert browser.text("#selected-title") == "camera-1"
    browser.click("[data-stream=door] button")
    browser.shows("#selected-title", "door")
    assert browser.script("return location.hash") == "#stream=door"
    assert browser.texts("[aria-current=true]") == ["door"]
    service.streams["door"]["images"] = 77
    browser.open("about:blank")
    browser.open(service.url + "#stream=door")
    browser.shows("#numbers", "77")


def test_what_is_shown_of_a_stream(browser: Browser, service: FakeService) -> None:
    assert browser.texts("#numbers > div") == [
        "Images answered\n12,345\nnone failed",
        "Labels changed\n8.2 %\nof the last answers",
        "Mean entropy\n0.94 → 0.61\nbefore → after, in nats",
        "Memory\n68.3 %\n512 of 750 entries",
        f"Accuracy\n{NONE}\nno true labels were sent",
    ]
    assert [row.split("\n") for row in browser.texts("#mix li")][:2] == [
        ["cat", "400 · 40.9 %"],
        ["dog", "200 · 20.4 %"],
    ]
    cards = browser.texts("#changed li")
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
    browser.shows("#numbers", "2 fell back to zero-shot")
    assert browser.texts("#numbers > div")[3:] == [
        f"Memory\n{NONE}\nit is on disk",
        "Accuracy\n75.0 %\nzero-shot 62.5 %, 8 true labels",
    ]
    assert browser.text("#selected-recovered") == "Repaired when it was read: the last record was cut"


def test_images_that_are_not_kept(browser: Browser, service: FakeService) -> None:
    browser.click("[data-stream=door] button")
    browser.shows("#changed-note", "Not kept: start the service with --keep-changed")
    service.activities["door"] = stream_activity(changed_share=0.0)
    browser.script("selected.poll()")
    browser.shows("#changed-note", "None among the last answers.")


def test_many_changed_images_are_shown_on_request(browser: Browser, service: FakeService) -> None:
    service.activities["camera-1"] = stream_activity(changed_images=11)
    browser.script("selected.poll()")
    browser.wait("document.querySelectorAll('#changed li').length === 6")
    assert browser.text("#all-changed") == "Show all 11"
    browser.click("#all-changed")
    browser.wait("document.querySelectorAll('#changed li').length === 11")
    assert browser.script("return document.getElementById('all-changed').hidden") is True


def test_nothing_is_asked_while_nobody_looks(browser: Browser, service: FakeService) -> None:
    hide = """
        Object.defineProperty(document, "visibilityState", { value: arguments[0], configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));"""
    browser.script(hide, "hidden")
    before = len(service.requests)
    browser.script("selected.poll(); streamList.poll()")
    browser.script("return new Promise((done) => setTimeout(done, 200))")
    assert len(service.requests) == before
    browser.script(hide, "visible")
    browser.script("return selected.poll()")
    assert len(service.requests) > before


def test_snapshot(browser: Browser, service: FakeService) -> None:
    browser.click("[data-action=snapshot]")
    browser.shows("#selected-message", "Everything that camera-1 has learned is on disk.")
    assert service.sent("POST") == ["/v1/streams/camera-1/snapshot"]


def test_reset_asks_first(browser: Browser, service: FakeService) -> None:
    browser.click("[data-action=reset]")
    assert browser.text("#confirm-title") == "Reset camera-1?"
    browser.click("#confirm-no")
    browser.wait("!document.getElementById('confirm').open")
    assert service.sent("POST") == []
    browser.click("[data-action=reset]")
    browser.click("#confirm-yes")
    browser.shows("#selected-message", "camera-1 has forgotten what it had learned.")
    browser.shows("#numbers", "0 of 750 entries")


def test_delete_asks_first_and_names_the_stream(browser: Browser, service: FakeService) -> None:
    browser.click("[data-action=delete]")
    assert browser.text("#confirm-title") == "Delete camera-1?"
    assert "The stream camera-1 and everything that it has learned" in browser.text("#confirm-text")
    browser.click("#confirm-yes")
    browser.shows("#selected-outcome", "camera-1 is deleted.")
    assert "camera-1" not in service.streams
    browser.wait("document.querySelectorAll('#stream-table tbody tr').length === 2")
    assert browser.text("#selected-title") == "No stream is selected"


def test_the_dialog_keeps_the_focus_and_closes_with_escape(browser: Browser, service: FakeService) -> None:
    browser.keys("[data-action=delete]", ENTER)
    visited = []
    for _ in range(5):
        visited.append(browser.focused())
        browser.press(TAB)
    assert visited == ["confirm-no", "confirm-yes", "confirm-no", "confirm-yes", "confirm-no"]
    browser.press(ESCAPE)
    browser.wait("!document.getElementById('confirm').open")
    assert browser.focused() == "delete-stream"
    assert service.sent("DELETE") == []


def test_an_action_that_fails_says_why(browser: Browser, service: FakeService) -> None:
    failure = (403, "the token needs the scope manage", {})
    service.failures["POST", "/v1/streams/camera-1/snapshot"] = failure
    browser.click("[data-action=snapshot]")
    browser.shows("#selected-message", "The token does not allow this: the token needs the scope manage.")


def test_a_stream_that_somebody_else_deleted(browser: Browser, service: FakeService) -> None:
    del service.streams["camera-1"]
    browser.script("selected.poll()")
    browser.shows("#selected-outcome", "There is no stream camera-1 (any more).")
