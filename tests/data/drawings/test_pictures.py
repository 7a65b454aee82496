import numpy as np
import pytest

from ramen.data.corruptions import CORRUPTIONS
from ramen.data.drawings import captions, shapes, styles
from ramen.data.drawings.domains import DOMAINS, mixed_stream
from ramen.data.drawings.pictures import draw_pictures


@pytest.mark.parametrize("style", [*styles.TRAINED, *styles.UNSEEN])
def test_every_object_in_every_style(style):
    names = list(shapes.OBJECTS)
    pictures = draw_pictures(names, [style] * len(names), (0,))
    assert pictures.pixels.shape == (len(names), 32, 32, 3)
    assert pictures.pixels.dtype == np.uint8
    # something is to be seen in each: the middle differs from a corner
    assert all(np.ptp(image.astype(int)) > 60 for image in pictures.pixels)
    assert len(np.unique(pictures.pixels.reshape(len(names), -1), axis=0)) == len(names)


def test_a_picture_depends_on_seed_and_number_alone():
    names, drawn_in = ["cat", "car", "key"], ["flat", "pencil", "neon"]
    whole = draw_pictures(names, drawn_in, (5, 1)).pixels
    assert np.array_equal(whole, draw_pictures(names, drawn_in, (5, 1)).pixels)
    assert np.array_equal(whole[:2], draw_pictures(names[:2], drawn_in[:2], (5, 1)).pixels)
    assert not np.array_equal(whole, draw_pictures(names, drawn_in, (5, 2)).pixels)


@pytest.mark.parametrize("name", shapes.OBJECTS)
def test_objects_stay_inside_the_picture(name):
    rng = np.random.default_rng(0)
    for _ in range(50):
        points = np.concatenate([part.points for part in shapes.individual(name, rng)])
        assert (np.abs(points) < 1.35).all()
        assert (np.abs(points) < 1).mean() > 0.8


def test_outlines_close_what_is_closed():
    square = shapes.Part(np.array([[0.0, 0], [1, 0], [1, 1]]))
    line = shapes.Part(np.array([[0.0, 0], [1, 0]]), closed=False)
    closed, opened = shapes.outlines([square, line])
    assert closed.tolist() == [[0, 0], [1, 0], [1, 1], [0, 0]]
    assert opened.tolist() == [[0, 0], [1, 0]]


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


def test_stream_is_balanced_shuffled_and_decided_by_its_seed():
    stream = mixed_stream(["cat", "house"], 6, seed=3)
    assert len(stream) == 6 * len(DOMAINS)
    assert stream.pixels.shape == (len(stream), 3, 32, 32)
    for domain in range(len(DOMAINS)):
        assert sorted(stream.labels[stream.domains == domain].tolist()) == [0, 0, 0, 1, 1, 1]
    assert stream.domains.tolist() != sorted(stream.domains.tolist())
    again = mixed_stream(["cat", "house"], 6, seed=3)
    assert stream.pixels.equal(again.pixels)
    assert stream.domains.equal(again.domains)
    assert not stream.pixels.equal(mixed_stream(["cat", "house"], 6, seed=4).pixels)


def test_domains_are_all_corruptions_but_frost_and_all_unseen_styles():
    corruptions = [name for name in CORRUPTIONS if name != "frost"]
    assert len(corruptions) == 14
    assert (*corruptions, *styles.UNSEEN) == DOMAINS
    assert not set(styles.UNSEEN) & set(styles.TRAINED)
    done = []
    mixed_stream(["cat"], 2, seed=0, progress=done.append)
    assert sum(done) == 2 * len(DOMAINS)
