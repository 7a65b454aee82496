import io
import os

import pytest

from ramen.classify.files import LiteralPath, Photos, as_sources, read_list
from ramen.predict.sources import NoImage, expand


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Some files and folders in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("one.jpg", "photos/b.png", "photos/a.PNG", "photos/deep/c.webp", "photos/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    return tmp_path


def photos(*arguments, stdin=b"", outside=None):
    return Photos.from_arguments(arguments, io.BytesIO(stdin), outside)


def test_files_folders_and_patterns(here):
    found = photos("one.jpg", "photos", "*.jpg", "photos/b.png").find()
    assert found == ["one.jpg", "photos/a.PNG", "photos/b.png", "photos/deep/c.webp"]
    assert photos(".").find()[0] == "./one.jpg"
    assert photos("photos/*").find() == [*found[1:], "photos/notes.txt"]
    assert photos("photos/**/*.webp").find() == ["photos/deep/c.webp"]


def test_what_is_done_is_left_out(here):
    assert photos("one.jpg", "photos").find({"photos/b.png", "one.jpg"}) == [
        "photos/a.PNG",
        "photos/deep/c.webp",
    ]


def test_a_folder_inside_can_be_left_out(here):
    assert photos("photos", outside=here / "photos" / "deep").find() == ["photos/a.PNG", "photos/b.png"]
    assert len(photos("photos", outside=here / "photos" / "de").find()) == 3


def test_an_empty_folder_has_no_files(here):
    assert photos("empty").find() == []
    assert photos("empty", "one.jpg", "photos").folders == ["empty", "photos"]


@pytest.mark.parametrize("argument", ["nothing.jpg", "nowhere", "*.gif", "no[thing"])
def test_a_name_that_is_not_there_is_refused(here, argument):
    with pytest.raises(ValueError, match="PHOTOS: there is no file or folder"):
        photos("one.jpg", argument)


def test_a_list_on_standard_input(here):
    """Its names are taken literally, folders are searched, and what is missing gets its own row later."""
    assert photos("-", stdin=b"one.jpg\nphotos\n\n./no[ne].jpg\r\n").find() == [
        "one.jpg",
        "photos/a.PNG",
        "photos/b.png",
        "photos/deep/c.webp",
        "./no[ne].jpg",
    ]
    assert photos("-").find() == []


def test_a_list_with_zero_bytes_may_have_any_name():
    names = ["a\nb.jpg", "\udcff.jpg", "\N{SLICE OF PIZZA}.jpg"]
    content = b"".join(os.fsencode(name) + b"\0" for name in names)
    assert [entry.path for entry in read_list(io.BytesIO(content))] == names


def test_keys_are_exactly_the_paths(here):
    odd = "photos/odd[1]*\n\udcff.jpg"
    (here / odd).write_bytes(b"x")
    paths = ["./one.jpg", "photos//b.png", odd, "gone[1].jpg", "photos/deep/../a.PNG"]
    sources = list(expand(as_sources(paths)))
    assert [source.key for source in sources] == paths
    assert [isinstance(source.value, NoImage) for source in sources] == [False, False, False, True, False]
    assert os.fspath(LiteralPath("./x")) == "./x"
