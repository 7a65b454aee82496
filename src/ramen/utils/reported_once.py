"""Errors that all processes of a group know of, and that the first one alone reports."""

from collections.abc import Callable
from typing import TypeVar

from ramen.utils.peers import Peers

_Value = TypeVar("_Value")


class ReportedElsewhereError(RuntimeError):
    """An error that the first process of the group reports."""


def attempt_reported_once(peers: Peers, work: Callable[[], _Value], what: str) -> _Value:
    """What ``work`` returns, if it succeeds in all processes.

    Otherwise the first process raises what is to be reported, and those that know so raise
    ``ReportedElsewhereError``.
    """
    error: Exception | None = None
    try:
        value = work()
    except Exception as raised:
        error = raised
    found = peers.failures(error, what)
    if peers.rank and found.known_to_first and any(found.messages):
        raise ReportedElsewhereError(next(filter(None, found.messages))) from error
    if error is not None:
        raise error
    found.raise_first(what)
    return value
