"""Data sets in a folder ``domain/class/image``."""

import pytest

from ramen.data.formats.reading import DataError
from ramen.data.registry import load, read
from tests.fakes.layouts import write_image, write_tree


def levels(reading):
    return [finding.level for finding in reading.findings]


def test_a_folder_of_domains(tmp_path):
    write_tree(tmp_path, ["summer", "autumn"], ["red_fox", "bear"])
    write_image(tmp_path / "winter/wolf/Z.PNG")
    data = load("folder", tmp_path)
    assert data.classes == ("bear", "red fox", "wolf")
    assert [domain.name for domain in data.domains] == ["autumn", "summer", "winter"]
    autumn, _, winter = data.domains
    assert autumn.labels.tolist() == [0, 0, 1, 1]
    assert autumn.images.read([3, 0]) == [tmp_path / "autumn/red_fox/b.jpg", tmp_path / "autumn/bear/a.jpg"]
    assert winter.labels.tolist() == [2]
    assert winter.images.read([0])[0].is_file()


def test_the_choice_of_domains_does_not_change_the_class_indices(tmp_path):
    write_tree(tmp_path, ["summer"], ["bear"])
    write_tree(tmp_path, ["winter"], ["wolf"])
    data = load("folder", tmp_path, domains=["winter"])
    assert data.classes == ("bear", "wolf")
    assert data.domains[0].labels.tolist() == [1, 1]


def test_ignored_files_are_reported(tmp_path):
    write_tree(tmp_path, ["summer"], ["bear"])
    (tmp_path / "summer/bear/notes.txt").touch()
    (tmp_path / "summer/bear/.DS_Store").touch()
    (tmp_path / "summer/list.txt").touch()
    (tmp_path / "summer/wolf").mkdir()
    reading = read("folder", tmp_path)
    notes = list(map(str, reading.findings))
    assert set(levels(reading)) == {"note"}
    assert len(notes) == 3
    assert "notes.txt" in notes[0]
    assert "DS_Store" not in notes[0]
    assert "list.txt: is ignored" in notes[1]
    assert "has no image of 1 classes: wolf" in notes[2]
    assert len(reading.dataset()) == 2


def test_empty_domain(tmp_path):
    write_tree(tmp_path, ["summer"], ["bear"])
    (tmp_path / "winter/bear").mkdir(parents=True)
    with pytest.raises(DataError, match="winter: has no image in any class folder"):
        load("folder", tmp_path)
    assert len(load("folder", tmp_path, domains=["summer"])) == 2


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(DataError, match=r"nothing: missing \(it must hold domain/class/image\)"):
        load("folder", tmp_path / "nothing")
    with pytest.raises(DataError, match="has no folder in it"):
        load("folder", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is not a folder"):
        load("folder", tmp_path / "file")


def test_two_folders_of_the_same_name(tmp_path):
    write_tree(tmp_path, ["summer"], ["red_fox", "red fox"])
    with pytest.raises(DataError, match="'red fox' and 'red_fox' both mean 'red fox'"):
        load("folder", tmp_path)
