import io
import os

import pytest

from ramen.images.file_checks import check_bytes, read_file, read_object


def test_all_bytes_of_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(ValueError, match="it has 5 B, more than 4 B"):
        read_file(path, 4)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", 5)


def test_only_regular_files_are_opened(tmp_path):
    """A FIFO without a writer would be waited for."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="it is not a regular file"):
        read_file(tmp_path / "fifo", 5)
    with pytest.raises(ValueError, match="it is a directory"):
        read_file(tmp_path, 5)


def test_a_file_object_is_read_from_its_beginning_and_not_beyond_the_limit():
    file = io.BytesIO(b"x" * 100)
    file.seek(50)
    assert read_object(file, 100) == b"x" * 100
    with pytest.raises(ValueError, match="it has more than 10 B"):
        read_object(file, 10)
    assert file.tell() == 11
    with pytest.raises(TypeError, match="must be opened in binary mode, but it gave str"):
        read_object(io.StringIO("text"), 10)


def test_a_limit_is_inclusive():
    check_bytes(5, 5)
    with pytest.raises(ValueError, match="more than 5 B"):
        check_bytes(6, 5)
