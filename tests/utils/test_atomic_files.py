"""Atomic writes: the whole file or the old one, and no leftovers."""

from pathlib import Path

import pytest

from ramen.utils.atomic_files import atomic_write, write_text


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with atomic_write(path) as file:
        file.write(b"half")
        assert not path.exists()
    assert path.read_bytes() == b"half"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old: ü")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text(encoding="utf-8") == "old: ü"
    assert list(tmp_path.iterdir()) == [path]


def test_staging_elsewhere(tmp_path: Path) -> None:
    path, staging = tmp_path / "file", tmp_path / "staging"
    with atomic_write(path, staging=staging, durable=False) as file:
        assert [part.parent for part in staging.iterdir()] == [staging]
        file.write(b"content")
    assert path.read_bytes() == b"content"
    assert not list(staging.iterdir())
