"""Why the slowest requests of a load were slow: where their time went, and when in the load they came.

Slow requests that overlap in time were held up by one thing, a stall. If they are spread over the whole load,
it is queueing: requests that came at a bad moment.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from service_checks.load import Outcome, counted_from, percentile

_PERCENT = 95.0
_SHOWN = 8  # of the slowest requests, and of the groups


def tail(outcomes: Sequence[Outcome], warm_up: float = 0.0) -> dict[str, Any]:
    """What is known of the answered requests at or above the 95th percentile; times in milliseconds.

    Args:
        outcomes: What became of requests.
        warm_up: Seconds after the first one that do not count, as in ``summary``.

    Returns:
        How many requests these are and from which latency on; medians of the parts of their latency, beside
        those of the other requests; the slowest ones; and the largest groups of slow requests that overlap in
        time. ``at_s`` is in seconds after the first request of the load was due.
    """
    start = counted_from(outcomes, warm_up)
    answered = [outcome for outcome in outcomes if outcome.due >= start and outcome.status == 200]
    if not answered:
        return {"requests": 0}
    first = min(outcome.due for outcome in outcomes)
    least = percentile([outcome.latency for outcome in answered], _PERCENT)
    slow = [outcome for outcome in answered if outcome.latency >= least]
    others = [outcome for outcome in answered if outcome.latency < least]
    slowest = sorted(slow, key=lambda one: one.latency, reverse=True)[:_SHOWN]
    groups = sorted(overlapping(slow), key=len, reverse=True)
    return {
        "requests": len(slow),
        "from_ms": _rounded(1000 * least),
        "slow": _medians(slow),
        "others": _medians(others),
        "slowest": [{"at_s": _rounded(one.due - first), **parts(one)} for one in slowest],
        "groups": len(groups),
        "largest_groups": [
            {
                "at_s": _rounded(group[0].due - first),
                "requests": len(group),
                "slowest_ms": _rounded(1000 * max(one.latency for one in group)),
            }
            for group in groups[:_SHOWN]
        ],
    }


def parts(outcome: Outcome) -> dict[str, float | None]:
    """Where the time of a request went; None for what the server has not said.

    ``client_ms`` is how late the client sent it. ``queued_ms`` and ``computed_ms`` are the server's own
    account; files are decoded within the first. ``rest_ms`` is what is left: HTTP on both sides, and the way
    between the processes of the server.
    """
    queued, computed = outcome.queued_ms, outcome.computed_ms
    latency, client = 1000 * outcome.latency, 1000 * (outcome.sent - outcome.due)
    rest = None if queued is None or computed is None else latency - client - queued - computed
    found = {"latency": latency, "client": client, "queued": queued, "computed": computed, "rest": rest}
    return {f"{name}_ms": None if value is None else _rounded(value) for name, value in found.items()}


def overlapping(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Requests in groups: each was due before one of those before it in its group was answered."""
    groups: list[list[Outcome]] = []
    until = float("-inf")
    for outcome in sorted(outcomes, key=lambda one: one.due):
        if outcome.due > until:
            groups.append([])
        groups[-1].append(outcome)
        until = max(until, outcome.ended)
    return groups


def _medians(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    rows = [parts(outcome) for outcome in outcomes]
    medians: dict[str, float | None] = {}
    for name in rows[0] if rows else ():
        known = [value for row in rows if (value := row[name]) is not None]
        medians[name] = _rounded(statistics.median(known)) if known else None
    return medians


def _rounded(value: float) -> float:
    return round(value, 3)
