import asyncio
from collections import Counter
from types import SimpleNamespace

from ramen.serve.on_ray.router import StreamRouter, preference

STREAMS = [f"camera-{number}" for number in range(2000)]


def place(stream: str, replicas: list[str]) -> str:
    return max(replicas, key=lambda replica: preference(stream, replica))


def test_streams_are_spread_evenly():
    counts = Counter(place(stream, ["a", "b", "c", "d"]) for stream in STREAMS)
    assert all(400 < count < 600 for count in counts.values())


def test_only_streams_of_a_replica_that_has_gone_change_their_place():
    before = {stream: place(stream, ["a", "b", "c"]) for stream in STREAMS}
    after = {stream: place(stream, ["c", "a"]) for stream in STREAMS}
    assert all(after[stream] == was for stream, was in before.items() if was != "b")
    assert {after[stream] for stream, was in before.items() if was == "b"} == {"a", "c"}


def chosen(stream: str, *arguments: str | None, names: str = "abc") -> list[list[str]]:
    replicas = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in names]
    request = SimpleNamespace(
        args=list(arguments),
        metadata=SimpleNamespace(multiplexed_model_id=stream),
        routing_context=SimpleNamespace(should_backoff=False),
    )
    ranks = asyncio.run(StreamRouter.choose_replicas(None, replicas, request))
    return [[replica.replica_id.unique_id for replica in rank] for rank in ranks]


def test_one_replica_is_chosen():
    for stream in STREAMS[:20]:
        (rank,) = chosen(stream, None)
        assert rank == [place(stream, list("cab"))]
        assert chosen(stream) == [rank]


def test_the_caller_may_know_better():
    assert {*map(str, chosen("camera-1", "b"))} == {"['b']"}
    assert chosen("camera-1", "gone") == chosen("camera-1", None)


def test_requests_without_a_stream_go_anywhere():
    assert chosen("") == [["a", "b", "c"]]
    assert chosen("camera-1", names="") == [[]]
