"""When a request is sent again; ``test_client`` has the whole."""

import pytest

from ramen.client.calls import Attempts, RetrySettings
from ramen.client.operations import ServerOverloadedError, UnexpectedReplyError, UnreachableError


def delays(error, settings, *, draw=0.0, repeatable=False) -> list[float]:
    """All waits until it gives up; the clock shows the time that was waited."""
    now, found = [0.0], []
    attempts = Attempts(settings, repeatable, clock=lambda: now[0], draw=lambda: draw)
    while True:
        try:
            found.append(attempts.delay_after(error))
        except type(error):
            return found
        now[0] += found[-1]


def test_waits_grow_to_a_limit():
    error = UnreachableError("gone", nothing_done=True)
    found = delays(error, RetrySettings(8, 60))
    assert found == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_it_never_comes_before_the_time_that_the_service_says_and_not_all_at_once():
    error = ServerOverloadedError("full", retry_after=2.0, nothing_done=True)
    assert delays(error, RetrySettings(2, 60), draw=0.0) == [2.0, 2.0]
    assert delays(error, RetrySettings(2, 60), draw=1.0) == [2.5, 2.5]


def test_a_service_that_is_wrong_about_the_time_is_asked_less_often():
    error = ServerOverloadedError("full", retry_after=0.05, nothing_done=True)
    assert delays(error, RetrySettings(4, 60)) == pytest.approx([0.1, 0.2, 0.2, 0.2])


def test_the_time_in_all_is_limited():
    error = ServerOverloadedError("full", retry_after=2.0, nothing_done=True)
    assert delays(error, RetrySettings(100, 9)) == [2.0] * 4


@pytest.mark.parametrize("settings", [RetrySettings(0, 60), RetrySettings(9, 0)], ids=["none", "no time"])
def test_no_second_attempt(settings):
    assert delays(UnreachableError("gone", nothing_done=True), settings) == []


def test_what_does_not_pass_is_not_tried_again():
    assert delays(UnexpectedReplyError("?", nothing_done=True), RetrySettings(9, 60), repeatable=True) == []
