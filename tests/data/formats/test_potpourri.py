"""Several data sets that a TOML file makes one."""

import numpy as np
import pytest

from ramen.data.formats.reading import DataError
from ramen.data.registry import describe, load
from ramen.data.streams.stream import make_stream
from ramen.images.preprocess import Preprocess
from tests.fakes.layouts import write_image


@pytest.fixture
def folder(tmp_path):
    """Arrays of two classes, files of one and two classes."""
    pixels = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3), dtype=np.uint8)
    np.savez(
        tmp_path / "small.npz", labels=[0, 1, 1, 0], fog=pixels, snow=pixels[::-1], classes=["cat", "red fox"]
    )
    for name in ("sketch/n02/a.jpg", "sketch/n02/b.jpg", "photo/n02/c.jpg", "photo/n01/d.jpg"):
        write_image(tmp_path / "files" / name)
    return tmp_path


def written(folder, text):
    path = folder / "mix.toml"
    path.write_text(text, encoding="utf-8")
    return path


ARRAYS = '[[set]]\ndata = "arrays"\nroot = "small.npz"\n'
FILES = '[[set]]\ndata = "folder"\nname = "real"\nroot = "files"\n'
NAMED = FILES + 'names = {n01 = "cat", n02 = 1}\n'


def test_all_sets_answer_to_the_classes_of_the_first(folder):
    data = load("potpourri", written(folder, ARRAYS + NAMED))
    assert data.classes == ("cat", "red fox")
    found = {domain.name: domain.labels.tolist() for domain in data.domains}
    assert found == {
        "arrays/fog": [0, 1, 1, 0],
        "arrays/snow": [0, 1, 1, 0],
        "real/photo": [0, 1],
        "real/sketch": [1, 1],
    }
    assert set(data.identity["sets"]) == {"arrays", "real"}
    two = load("potpourri", folder / "mix.toml", domains=["real/sketch", "arrays/fog"])
    assert [domain.name for domain in two.domains] == ["real/sketch", "arrays/fog"]


def test_a_stream_mixes_tensors_and_files(folder):
    data = load("potpourri", written(folder, ARRAYS + NAMED))
    stream = make_stream("potpourri", data, 1)
    assert stream.protocol == "mixed"
    assert sorted(stream.domain.tolist()) == [0] * 4 + [1] * 4 + [2] * 2 + [3] * 2
    prepare = Preprocess((8, 8))
    together = prepare(stream.read(slice(0, 12)))
    for position in range(12):
        domain = data.domains[stream.domain[position]]
        alone = prepare(domain.images.read([int(stream.index[position])]))
        assert together[position].equal(alone[0])
        assert stream.labels()[position] == domain.labels[stream.index[position]]


def test_classes_of_later_sets_can_be_added(folder):
    data = load(
        "potpourri", written(folder, 'classes = "all"\n' + ARRAYS + FILES + 'names = {n01 = "cat"}\n')
    )
    assert data.classes == ("cat", "red fox", "n02")
    assert data.domains[2].labels.tolist() == [0, 2]


def test_the_same_set_twice_and_options(folder):
    again = ARRAYS + 'name = "again"\ndomains = ["snow"]\n'
    data = load("potpourri", written(folder, ARRAYS + again))
    assert [domain.name for domain in data.domains] == ["arrays/fog", "arrays/snow", "again/snow"]
    renamed = load("potpourri", written(folder, ARRAYS + 'names = {cat = "dog"}\n'))
    assert renamed.classes == ("dog", "red fox")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"has no table \[\[set\]\]"),
        ("set = 3", r"has no table \[\[set\]\]"),
        ("[[set", "cannot be read"),
        ('class = "all"\n' + ARRAYS, "has unknown keys: class"),
        ('classes = "some"\n' + ARRAYS, "classes must be one of 'first', 'all', got 'some'"),
        ("[[set]]\nroot = 'x'\n", "set 1: data must be a name"),
        (ARRAYS + "names = {cat = 1.5}\n", "names a table of names and numbers"),
        (ARRAYS + ARRAYS, "set 2: is called 'arrays' like an earlier one"),
        ("[[set]]\ndata = 'array'\n", "set 1: name: no data set is called 'array'"),
        (ARRAYS + "severity = 3\n", "set 1: arrays has no option 'severity'"),
        ("[[set]]\ndata = 'arrays'\nroot = 'none.npz'\n", "none.npz: missing"),
        (ARRAYS + FILES, "set 2: has 2 classes that the first set does not have: n01, n02"),
        (ARRAYS + FILES + "names = {n03 = 'cat'}\n", "names has classes that the set does not have: n03"),
        (ARRAYS + FILES + "names = {n01 = 'cat', n02 = 2}\n", "which class of the first set these are: 2"),
        (
            ARRAYS + FILES + "names = {n01 = 'cat', n02 = 0}\n",
            "has two classes that are the same class",
        ),
    ],
)
def test_what_is_wrong_with_the_file(folder, text, message):
    with pytest.raises(DataError, match=message):
        load("potpourri", written(folder, text))


def test_what_is_known_about_it(tmp_path):
    info = describe("potpourri")
    assert info.options == ("domains",)
    assert info.needs_root
    with pytest.raises(DataError, match=r"missing.toml: missing"):
        load("potpourri", tmp_path / "missing.toml")
