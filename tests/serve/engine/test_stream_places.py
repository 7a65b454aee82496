"""Folders and buckets do the same."""

import uuid
from pathlib import Path

import pytest

from ramen.serve.engine.stream_places import StreamPlaces, open_places


@pytest.fixture(params=["folder", "bucket"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> StreamPlaces:
    if request.param == "folder":
        return open_places(str(tmp_path / "state"))
    pytest.importorskip("fsspec")
    return open_places(f"memory://places-{uuid.uuid4().hex}/")


def put(places: StreamPlaces, name: str, file: str) -> None:
    """Something of the store."""
    location = places.location(name)
    if "://" not in location:
        (Path(location) / file).write_bytes(b"x")
        return
    import fsspec

    files, path = fsspec.core.url_to_fs(location)
    files.pipe_file(f"{path}/{file}", b"x")


def test_facts_are_written_read_and_replaced(places: StreamPlaces) -> None:
    assert places.names() == []
    assert places.read("a") is None
    for facts, durable in ((b"one", True), (b"two", False)):
        places.write("a", facts, durable=durable)
        assert places.read("a") == facts
    places.write("b", b"three", durable=True)
    assert sorted(places.names()) == ["a", "b"]


def test_states_are_removed_with_or_without_their_facts(places: StreamPlaces) -> None:
    for name in ("a", "b"):
        places.write(name, b"facts", durable=True)
        put(places, name, "segment-00000001.log")
    places.remove_state("a")
    assert places.read("a") == b"facts"
    places.remove("b")
    places.remove("no-such")
    assert places.names() == ["a"]
    places.remove("a")
    assert places.names() == []


def test_what_is_no_stream_is_not_listed(tmp_path: Path) -> None:
    places = open_places(str(tmp_path))
    for name in (".hidden", "lost+found", "a"):
        (tmp_path / "streams" / name).mkdir()
    assert places.names() == ["a"]


def test_a_temporary_folder_is_removed() -> None:
    places = open_places(None)
    places.write("a", b"facts", durable=False)
    folder = Path(places.location("a"))
    assert folder.exists()
    places.close()
    assert not folder.exists()
