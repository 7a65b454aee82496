"""Captions and the names of objects."""

import pytest

from ramen.data.drawings import captions, shapes, styles


def test_captions_speak_of_every_object_and_trained_style_and_of_no_unseen_one():
    assert set(captions.NAMES) == set(shapes.OBJECTS)
    assert tuple(captions.STYLES) == tuple(styles.TRAINED)
    words = {w for a in captions.ADDITIONS for frame in a for w in frame.strip(".").split()}
    words |= {w for names in captions.NAMES.values() for name in names for w in name.split()}
    assert not words & {"chalk", "neon", "stained", "glass", "thermal"}
    assert "a cartoon kitten." in captions.captions("cat", captions.FIRST_STYLE + 1)
    every_name = [name for names in captions.NAMES.values() for name in names]
    assert len(every_name) == len(set(every_name))


@pytest.mark.parametrize(
    ("word", "name"), [("cat", "cat"), (" Kitten ", "cat"), ("top  hat", "hat"), ("giraffe", None)]
)
def test_object_called(word, name):
    assert captions.object_called(word) == name
