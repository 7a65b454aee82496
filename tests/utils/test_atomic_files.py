"""Atomic writes: the whole file or the old one, and no leftovers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ramen.utils.files import TemporaryFolder, atomic_write, make_folder, private_files, write_text


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


def test_private_files(tmp_path: Path) -> None:
    with private_files():
        make_folder(tmp_path / "a" / "b")
        (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "other").write_text("x")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert (modes["a"], modes["b"], modes["file"]) == (0o700, 0o700, 0o600)
    assert modes["other"] != 0o600


def test_a_temporary_folder_of_a_killed_process_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = "import os, ramen.utils.files as f; t = f.TemporaryFolder('mine-')"
    script = f"{made}; print(t.path, flush=True); os._exit(9)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, stdout=-1, check=False)
    left = Path(killed.stdout.decode().strip())
    (left / "content").write_text("x")
    (tmp_path / "mine-of-something-else").mkdir()
    used = TemporaryFolder("mine-")
    assert used.left == [left]
    assert not left.exists()
    other = TemporaryFolder("mine-")
    assert other.left == []
    used.close()
    other.close()
    assert [path.name for path in tmp_path.iterdir()] == ["mine-of-something-else"]
