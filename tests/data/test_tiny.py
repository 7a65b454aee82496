"""The data set of drawings."""

import numpy as np
import pytest

from ramen.data.catalogue import load
from ramen.data.corruptions import EXTRA_CORRUPTIONS
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.drawings.tiny import DOMAINS, object_called
from ramen.methods._registry import create
from ramen.models.tiny_clip.model import load_tiny


def test_the_objects_come_in_turn():
    data = load("tiny", pictures=5, picture_seed=3)
    assert data.classes == tuple(OBJECTS)
    assert [domain.name for domain in data.domains] == list(DOMAINS)
    assert data.domains[0].labels.tolist() == [0, 1, 2, 3, 4]


def test_domains_seeds_and_bad_options():
    data = load("tiny", domains=["neon", "fog"], pictures=2)
    assert [domain.name for domain in data.domains] == ["neon", "fog"]
    assert data.identity == {"pictures": 2, "picture_seed": 0}
    first, other = data.domains[0].images, load("tiny", domains=["neon"], pictures=2, picture_seed=1)
    assert not np.array_equal(first.read([0]), other.domains[0].images.read([0]))
    assert np.array_equal(first.read([1, 0])[1], first.read([0])[0])
    with pytest.raises(IndexError, match="got 2"):
        first.read([2])
    with pytest.raises(ValueError, match="pictures must be at least 1"):
        load("tiny", pictures=0)


def test_clean_drawings_only_if_requested():
    data = load("tiny", domains=["clean", "brightness"], pictures=48)
    classifier = load_tiny(data.classes)
    pixels = data.domains[0].images.read(range(48))
    answers = create("ensemble", classifier).predict(classifier.preprocess(pixels)).labels
    assert (answers.numpy() == data.domains[0].labels).mean() > 0.95
    assert not np.array_equal(pixels, data.domains[1].images.read(range(48)))
    assert "clean" not in [domain.name for domain in load("tiny", pictures=1).domains]


def test_extra_corruptions_only_if_requested():
    data = load("tiny", domains=list(EXTRA_CORRUPTIONS), pictures=24)
    assert [domain.name for domain in data.domains] == list(EXTRA_CORRUPTIONS)
    first = [domain.images.read(range(24)) for domain in data.domains]
    assert len({pixels.numpy().tobytes() for pixels in first}) == 4  # other drawings for each
    assert not set(EXTRA_CORRUPTIONS) & set(DOMAINS)
    assert not set(EXTRA_CORRUPTIONS) & {domain.name for domain in load("tiny", pictures=1).domains}


def test_drawings_stay_what_they_are():
    """Committed results are about these: the place of a domain in the list decides its drawings."""
    data = load("tiny", domains=["fog", "thermal", "clean"], pictures=1)
    assert [int(domain.images.read([0]).sum()) for domain in data.domains] == [391220, 267229, 691389]


@pytest.mark.parametrize(
    ("word", "name"), [("cat", "cat"), (" Kitten ", "cat"), ("top  hat", "hat"), ("giraffe", None)]
)
def test_object_called(word, name):
    assert object_called(word) == name


def test_classes_of_ones_own():
    data = load("tiny", domains=["fog"], pictures=4, classes=["giraffe", "kitten", "boat"])
    assert data.classes == ("giraffe", "kitten", "boat")
    assert data.domains[0].labels.tolist() == [1, 2, 1, 2]  # nothing is drawn of what cannot be drawn
    assert data.identity["classes"] == list(data.classes)
    usual = load("tiny", domains=["fog"], pictures=4)
    assert not np.array_equal(data.domains[0].images.read([0]), usual.domains[0].images.read([0]))
    with pytest.raises(ValueError, match="classes"):
        load("tiny", classes="giraffe,okapi")
