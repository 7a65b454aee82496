"""Counts of several fronts add up, also on their way through JSON."""

import json

from ramen.serve.http.metrics import BOUNDS, RequestFigures


def figures(*requests: tuple[str, str, int, float | None]) -> RequestFigures:
    made = RequestFigures()
    for request in requests:
        made.count(*request)
    return made


def test_requests_are_counted_by_what_they_were() -> None:
    one = figures(("GET", "/a", 200, 0.001), ("GET", "/a", 200, 40.0), ("GET", "/b", 404, None))
    assert one.requests == {("GET", "/a", "200"): 2, ("GET", "/b", "404"): 1}
    assert one.seconds["/a"].total == 40.001
    assert one.seconds["/a"].counts == [1, *[0] * (len(BOUNDS) - 1), 1]
    assert list(one.seconds) == ["/a"]  # a stream of events says nothing about speed


def test_a_bound_belongs_to_what_is_below_it() -> None:
    one = figures(*[("GET", "/a", 200, bound) for bound in BOUNDS])
    assert one.seconds["/a"].counts == [1] * len(BOUNDS) + [0]


def test_sums() -> None:
    one, other = figures(("GET", "/a", 200, 0.3)), figures(("GET", "/a", 200, 0.3), ("PUT", "/b", 500, 2.0))
    one.listeners, other.listeners = 1, 2
    sent = RequestFigures.from_json(json.loads(json.dumps(other.to_json())))
    assert sent == other
    one.add_all(sent)
    both = figures(("GET", "/a", 200, 0.3), ("GET", "/a", 200, 0.3), ("PUT", "/b", 500, 2.0))
    both.listeners = 3
    assert one == both
    assert other == sent  # adding changes only one of them
