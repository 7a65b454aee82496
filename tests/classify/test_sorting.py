import os

import pytest

from ramen.classify.files import ClassFolders, folder_names
from tests.fakes.served_results import CLASSES, answer, failure


@pytest.fixture
def photos(tmp_path):
    """Three files of the same name with different content, and one with a strange name."""
    files = [tmp_path / "photos" / place / "img.jpg" for place in "abc"]
    files.append(tmp_path / "photos" / "odd\n\udcff\N{SLICE OF PIZZA}.jpg")
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"photo {number}")
    return files


def tree(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("copy", [False, True], ids=["links", "copies"])
def test_every_file_is_in_its_class_once(tmp_path, photos, copy):
    results = [
        answer(str(file), label) for file, label in zip(photos, ["cat", "cat", "dog", "cat"], strict=True)
    ]
    results += [failure("broken.jpg"), answer("gone.jpg")]
    out = tmp_path / "new" / "sorted"
    expected = {
        "cat/img.jpg": "photo 0",
        "cat/img-2.jpg": "photo 1",
        "dog/img.jpg": "photo 2",
        "cat/odd\n\udcff\N{SLICE OF PIZZA}.jpg": "photo 3",
    }
    for _ in range(2):  # again, as after an interruption
        folders = ClassFolders(out, CLASSES, copy=copy)
        folders.place(results)
        folders.place(results)
        assert tree(out) == expected
    assert all((out / name).is_symlink() != copy for name in expected)
    assert sorted(os.listdir(out)) == ["cat", "dog"]


@pytest.mark.parametrize("copy", [False, True], ids=["links", "copies"])
def test_nothing_is_overwritten(tmp_path, photos, copy):
    (tmp_path / "sorted" / "cat").mkdir(parents=True)
    own = tmp_path / "sorted" / "cat" / "img.jpg"
    own.write_text("mine")
    ClassFolders(tmp_path / "sorted", CLASSES, copy=copy).place([answer(str(photos[0]))])
    assert tree(tmp_path / "sorted") == {"cat/img.jpg": "mine", "cat/img-2.jpg": "photo 0"}


def test_links_work_from_anywhere(tmp_path, photos, monkeypatch):
    monkeypatch.chdir(tmp_path / "photos")
    ClassFolders(tmp_path / "sorted", CLASSES).place([answer("a/img.jpg")])
    monkeypatch.chdir("/")
    assert tree(tmp_path / "sorted") == {"cat/img.jpg": "photo 0"}
    assert os.readlink(tmp_path / "sorted" / "cat" / "img.jpg") == str(photos[0])


def test_copies_keep_their_time_and_are_made_without_hard_links_too(tmp_path, photos, monkeypatch):
    os.utime(photos[0], (1000, 1000))

    def no_links(*_):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    folders = ClassFolders(tmp_path / "sorted", CLASSES, copy=True)
    folders.place([answer(str(photos[0])), answer(str(photos[1]))])
    assert tree(tmp_path / "sorted") == {"cat/img.jpg": "photo 0", "cat/img-2.jpg": "photo 1"}
    assert (tmp_path / "sorted/cat/img.jpg").stat().st_mtime == 1000


def test_a_system_without_links_says_what_to_do(tmp_path, photos, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    with pytest.raises(OSError, match=r"links cannot be made here \(Operation not permitted\); use --copy"):
        ClassFolders(tmp_path / "sorted", CLASSES).place([answer(str(photos[0]))])


def test_many_files_of_one_name_do_not_take_many_tries(tmp_path, monkeypatch):
    """Each one is placed at the first try, not after all that have its name already."""
    tries = []
    link = os.symlink
    monkeypatch.setattr(os, "symlink", lambda *given, **named: (tries.append(given), link(*given, **named)))
    files = [tmp_path / str(number) / "frame.jpg" for number in range(50)]
    for file in files:
        file.parent.mkdir()
        file.touch()
    ClassFolders(tmp_path / "sorted", CLASSES).place([answer(str(file)) for file in files])
    assert len(tries) == len(os.listdir(tmp_path / "sorted" / "cat")) == 50


@pytest.mark.parametrize(
    ("label", "folder"),
    [
        ("fire truck", "fire truck"),
        ("a/b\\c", "a_b_c"),
        ("..", "_"),
        (".hidden", "hidden"),
        ("dots...", "dots"),
        ('<a:b"|?*>', "_a_b_____"),
        ("tab\tnewline\n", "tab_newline_"),
        ("猫", "猫"),
        ("é" * 200, "é" * 100),
    ],
)
def test_names_of_folders(label, folder):
    assert folder_names([label]) == {label: folder}


def test_names_of_folders_differ_on_every_system():
    names = folder_names(["cat", "CAT", "cat-2", "a/b", "a\\b"])
    assert list(names.values()) == ["cat", "CAT-2", "cat-2-2", "a_b", "a_b-2"]
