"""Everything that callers may hand over becomes single sources, lazily, in order, under the right keys."""

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ramen.predict.sources import NoImage, Source, expand


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files in an order that is neither that of their creation nor that of a walk by depth."""
    for name in ("b.jpg", "a/z.PNG", "a/b/c.gif", "c.txt", ".hidden.jpg", ".git/x.jpg", "a.jpg", "B.webp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path


def keys(sources: object) -> list[str]:
    return [source.key for source in expand(sources)]


def errors(sources: object) -> list[str]:
    found = list(expand(sources))
    assert all(isinstance(source.value, NoImage) for source in found)
    assert all(source.value.error.startswith(f"{source.key}: ") for source in found)
    return [source.value.error.removeprefix(f"{source.key}: ") for source in found]


def test_a_file_is_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert list(expand("a.jpg")) == [Source("a.jpg", "a.jpg")]
    assert list(expand("./a.jpg")) == [Source("./a.jpg", "./a.jpg")]
    assert list(expand(Path("c.txt"))) == [Source("c.txt", "c.txt")]  # named by the caller, whatever it is
    assert keys([entry for entry in os.scandir(".") if entry.name == "b.jpg"]) == ["./b.jpg"]


def test_a_folder_is_its_images_sorted_without_hidden_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["B.webp", "a/b/c.gif", "a/z.PNG", "a.jpg", "b.jpg"]
    found = list(expand(folder))
    assert [source.key for source in found] == [str(folder / name) for name in names]
    assert all(source.value == source.key for source in found)
    monkeypatch.chdir(folder)
    assert keys("a") == ["a/b/c.gif", "a/z.PNG"]
    assert keys("a/") == ["a/b/c.gif", "a/z.PNG"]


def test_links_cannot_lead_around_in_a_circle(folder: Path) -> None:
    (folder / "a/b/up").symlink_to(folder)
    (folder / "a/self.jpg").symlink_to("self.jpg")
    (folder / "a/gone.jpg").symlink_to("nowhere")
    (folder / "other").symlink_to(folder / "a/b")
    found = {os.path.relpath(source.key, folder): source.value for source in expand(folder)}
    images = ["B.webp", "a/b/c.gif", "a/gone.jpg", "a/self.jpg", "a/z.PNG", "a.jpg", "b.jpg", "other/c.gif"]
    assert list(found) == images
    damaged = [name for name, value in found.items() if isinstance(value, NoImage)]
    assert damaged == ["a/gone.jpg", "a/self.jpg"]
    assert found["a/gone.jpg"].error.endswith("gone.jpg: not a regular file")


def test_a_pattern_is_the_files_that_match(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert keys("*.jpg") == ["a.jpg", "b.jpg"]
    assert keys("[ab].jpg") == ["a.jpg", "b.jpg"]
    assert keys("?.jp*") == ["a.jpg", "b.jpg"]
    assert keys("**/*.gif") == ["a/b/c.gif"]
    assert keys("c.*") == ["c.txt"]  # asked for by name
    assert keys("?") == ["a/b/c.gif", "a/z.PNG"]  # a folder
    assert keys("a/**") == ["a/b/c.gif", "a/z.PNG"]  # each file once
    Path("[x].jpg").write_bytes(b"")
    assert list(expand("[x].jpg")) == [Source("[x].jpg", "[x].jpg")]  # a file of that name
    assert errors(Path("*.jpg")) == ["no such file or folder"]  # not a string


def test_what_is_not_there_says_so(folder: Path) -> None:
    (folder / "empty/.hidden").mkdir(parents=True)
    os.mkfifo(folder / "pipe.jpg")
    assert errors(str(folder / "no.jpg")) == ["no such file or folder"]
    assert errors(folder / "*.nothing") == ["no such file or folder"]
    assert errors(str(folder / "*.nothing")) == ["no file matches the pattern"]
    assert errors(str(folder / "**/empty/**")) == ["no file matches the pattern"]
    assert errors(folder / "empty")[0].startswith("the folder has no images, which are named .jpg, ")
    assert errors("a\0b") == ["embedded null byte"]
    assert errors("a\0*") == ["no file matches the pattern"]
    assert errors("x" * 5000) == ["File name too long"]
    assert errors(folder / "a.jpg" / "b") == ["Not a directory"]
    assert errors(folder / "pipe.jpg") == ["not a regular file"]
    assert errors("") == ["no such file or folder"]


def test_a_folder_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def denied(path: str) -> Any:
        if path == str(folder / "a"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    found = [source for source in expand(folder) if isinstance(source.value, NoImage)]
    assert [source.value.error for source in found] == [f"{folder / 'a'}: Permission denied"]


ONE_IMAGE: list[Any] = [
    b"data",
    bytearray(b"data"),
    memoryview(b"data"),
    io.BytesIO(b"data"),
    io.StringIO("text"),  # has an error, but its own
    Image.new("RGB", (2, 2)),
    np.zeros((4, 4, 3), np.uint8),
    np.zeros((4, 4)),
    np.zeros((1, 4, 4, 3)),  # likewise
    np.array(0.5),
    torch.zeros(3, 4, 4, dtype=torch.uint8),
    torch.zeros(2, 3, 4, 4),  # likewise
]


@pytest.mark.parametrize("value", ONE_IMAGE, ids=lambda value: type(value).__name__)
def test_one_image_stays_as_it_is(value: object) -> None:
    (found,) = expand(value)
    assert found.key == "image 0"
    assert found.value is value
    second = list(expand([b"first", value]))[1]
    assert second.key == "image 1"
    assert second.value is value


def test_a_batch_is_one_image_after_another() -> None:
    tensor = torch.randint(256, (3, 3, 4, 5), dtype=torch.uint8)
    array = tensor.permute(0, 2, 3, 1).numpy()
    for batch in (tensor, array):
        found = list(expand([b"", batch]))
        assert [source.key for source in found] == ["image 0", "image 1", "image 2", "image 3"]
        assert all((source.value == image).all() for source, image in zip(found[1:], batch, strict=True))


def test_iterables_of_anything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    nested = [["a.jpg", Path("b.jpg")], iter([b"x", ["a", {"key": b"y"}]]), (b"p", b"q", b"r"), set(), ()]
    assert keys(nested) == [
        *("a.jpg", "b.jpg", "image 2", "a/b/c.gif", "a/z.PNG", "key"),
        *("image 6", "image 7", "image 8"),
    ]
    assert keys(np.array(["a.jpg", "b.jpg"])) == ["a.jpg", "b.jpg"]
    assert keys(np.array([b"x", "b.jpg"], dtype=object)) == ["image 0", "b.jpg"]
    assert keys([]) == []


def test_pairs_bring_their_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    image = np.zeros((4, 4, 3), np.uint8)
    assert list(expand(("door", b"x"))) == [Source("door", b"x")]
    assert list(expand([(7, b"x"), (np.int64(8), b"y")])) == [Source("7", b"x"), Source("8", b"y")]
    assert list(expand(("a.jpg", "b.jpg"))) == [Source("a.jpg", "b.jpg")]  # a tuple of two paths too
    assert keys(["a.jpg", "b.jpg"]) == ["a.jpg", "b.jpg"]
    assert keys({"x": "a.jpg", "y": b""}) == ["x", "y"]
    assert keys(("trip", "a")) == ["trip/b/c.gif", "trip/z.PNG"]
    assert keys(("trip", "*.jpg")) == ["trip 0", "trip 1"]
    assert keys(("video", np.stack([image] * 2))) == ["video 0", "video 1"]
    assert keys(("set", [b"x", ("own", b"y")])) == ["set 0", "set 1/own"]
    assert errors(("x", "no.jpg")) == ["no such file or folder"]
    assert keys(("x", "no.jpg")) == ["x"]
    assert keys((True, b"x")) == ["image 0", "image 1"]  # no pair, but an iterable of two


def test_sources_are_sources_again(folder: Path) -> None:
    found = list(expand([folder, b"x", "no.jpg", None]))
    assert list(expand(found)) == found


@pytest.mark.parametrize("value", [None, 3.14, 7, object(), lambda: None, int])
def test_what_is_no_source_names_its_type(value: object) -> None:
    assert errors([value]) == [f"{type(value).__name__} is no source of images"]


def test_nothing_is_asked_for_before_it_is_needed() -> None:
    asked = []

    def generate() -> Iterator[bytes]:
        for number in range(5):
            asked.append(number)
            yield b""
        raise KeyError("the camera is gone")

    sources = expand([generate(), threading.Thread])
    assert asked == []
    for number in range(5):
        next(sources)
        assert asked == list(range(number + 1))
    with pytest.raises(KeyError, match="the camera is gone"):
        next(sources)
