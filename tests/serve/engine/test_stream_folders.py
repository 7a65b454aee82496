"""Folders of streams."""

from pathlib import Path

import pytest

from ramen.serve.engine.stream import StreamFacts, StreamFolders

FACTS = StreamFacts(("cat", "dog"), images=7)


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    return StreamFolders(str(tmp_path / "state"))


def test_facts_are_written_read_and_replaced(folders: StreamFolders) -> None:
    assert folders.names() == []
    assert folders.read("a") == (None, None)
    for facts in (FACTS, StreamFacts()):
        folders.write("a", facts)
        assert folders.read("a") == (facts, None)
    folders.write("b", FACTS)
    assert folders.names() == ["a", "b"]


def test_states_are_removed_with_or_without_their_facts(folders: StreamFolders) -> None:
    for name in ("a", "b"):
        folders.write(name, FACTS)
        (folders.location(name) / "segment-00000001.log").write_bytes(b"x")
    folders.remove_state("a")
    assert [path.name for path in folders.location("a").iterdir()] == ["stream.json"]
    folders.remove("b")
    folders.remove("no-such")
    assert folders.names() == ["a"]


def test_what_is_no_stream_is_not_listed(tmp_path: Path) -> None:
    folders = StreamFolders(str(tmp_path))
    for name in (".hidden", "lost+found", "a"):
        (tmp_path / "streams" / name).mkdir()
    assert folders.names() == ["a"]


def test_a_temporary_folder_is_removed() -> None:
    folders = StreamFolders(None)
    folders.write("a", FACTS)
    assert folders.location("a").exists()
    folders.close()
    assert not folders.location("a").exists()


def test_a_url_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="state must be a folder, got the URL s3://bucket/x: mount"):
        StreamFolders("s3://bucket/x")
