"""CIFAR-C in the layout of its release, complete and damaged."""

import pickle
import tracemalloc

import numpy as np
import pytest
import torch

from ramen.data.corruptions import CORRUPTIONS
from ramen.data.formats import class_names
from ramen.data.formats.reading import DataError
from ramen.data.formats.stored_images import ArrayFileImages
from ramen.data.registry import load, read
from tests.fakes.layouts import write_cifar_c


def errors(root, **options):
    return [str(finding) for finding in read("cifar10c", root, **options).errors]


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_a_severity_is_its_own_rows(tmp_path, severity):
    labels = write_cifar_c(tmp_path)
    data = load("cifar10c", tmp_path, severity=severity)
    assert [domain.name for domain in data.domains] == list(CORRUPTIONS)
    assert data.classes == class_names.CIFAR10
    assert data.identity == {"severity": severity}
    assert len(data) == 15 * 4
    for number, domain in enumerate(data.domains):
        pixels = domain.images.read([3, 0, 3])
        assert pixels.dtype == torch.uint8
        assert pixels.shape == (3, 3, 32, 32)
        assert pixels.is_contiguous()
        first = (severity - 1) * 4
        assert pixels[:, :, 5, 6].tolist() == [[first + i, severity, number] for i in (3, 0, 3)]
        assert domain.labels.tolist() == labels[first : first + 4].tolist()
        assert domain.labels.dtype == np.int64


def test_severity_5_is_the_default(tmp_path):
    write_cifar_c(tmp_path)
    assert load("cifar10c", tmp_path).domains[0].images.read([0])[0, 1, 0, 0] == 5


def test_rows_and_columns_of_pixels_keep_their_positions(tmp_path):
    array = np.arange(10 * 32 * 32 * 3, dtype=np.int64).reshape(10, 32, 32, 3).astype(np.uint8)
    np.save(tmp_path / "fog.npy", array)
    pixels = ArrayFileImages(tmp_path / "fog.npy", 2, 5).read([1, 4])
    assert np.array_equal(pixels.numpy(), array[[3, 6]].transpose(0, 3, 1, 2))


def test_100_classes(tmp_path):
    write_cifar_c(tmp_path, classes=100)
    data = load("cifar100c", tmp_path)
    assert len(data.classes) == len(set(data.classes)) == 100
    assert list(data.classes) == sorted(data.classes)  # the official indices are alphabetical
    assert data.classes[1] == "aquarium fish"
    assert data.classes[99] == "worm"
    assert not any("_" in name or "\n" in name for name in data.classes)


def test_chosen_corruptions_in_their_order(tmp_path):
    write_cifar_c(tmp_path, corruptions=["snow", "fog", "spatter"])
    data = load("cifar10c", tmp_path, domains=["spatter", "fog"])
    assert [domain.name for domain in data.domains] == ["spatter", "fog"]


def test_root_may_be_the_parent_folder(tmp_path):
    write_cifar_c(tmp_path / "CIFAR-10-C")
    assert len(load("cifar10c", tmp_path)) == 60
    write_cifar_c(tmp_path / "CIFAR-100-C", count=2)
    assert len(load("cifar100c", str(tmp_path))) == 30


def test_a_single_severity_has_a_folder(tmp_path):
    write_cifar_c(tmp_path / "CIFAR-10-C/severity_3", count=7, severities=1)
    data = load("cifar10c", tmp_path, severity=3)
    assert len(data.domains[0]) == 7
    assert data.domains[0].labels.tolist() == [number * 7 % 10 for number in range(7)]
    assert data.domains[1].images.read([6])[0, :, 0, 0].tolist() == [6, 1, 1]
    assert any("CIFAR-10-C/labels.npy: missing" in error for error in errors(tmp_path, severity=5))


def test_files_of_all_severities_override_a_folder_of_one(tmp_path):
    write_cifar_c(tmp_path, count=3)
    write_cifar_c(tmp_path / "severity_5", count=7, severities=1)
    assert len(load("cifar10c", tmp_path).domains[0]) == 3


def test_a_single_severity_elsewhere_is_not_taken_for_five(tmp_path):
    write_cifar_c(tmp_path, count=10, severities=1)
    assert "same images at each of 5 severities" in errors(tmp_path)[0]
    assert "severity_<number>" in errors(tmp_path)[0]


def test_the_record_of_a_made_set_is_part_of_its_identity(tmp_path):
    write_cifar_c(tmp_path)
    (tmp_path / "made.json").write_text('{"seed": 4}')
    assert load("cifar10c", tmp_path).identity == {"severity": 5, "made": {"seed": 4}}
    (tmp_path / "made.json").write_text("{")
    assert "made.json: cannot be read" in errors(tmp_path)[0]


def test_only_the_requested_rows_are_read(tmp_path):
    np.save(tmp_path / "labels.npy", np.zeros(50_000, dtype=np.int64))
    array = np.lib.format.open_memmap(tmp_path / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    del array
    tracemalloc.start()
    load("cifar10c", tmp_path, domains=["fog"]).domains[0].images.read(range(100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6  # the file has 154 MB, its labels 0.4 MB


def test_images_are_sent_to_another_process_without_their_content(tmp_path):
    write_cifar_c(tmp_path, count=50)
    images = load("cifar10c", tmp_path).domains[0].images
    before = images.read([1, 2])
    message = pickle.dumps(images)
    assert len(message) < 2000
    assert torch.equal(pickle.loads(message).read([1, 2]), before)


@pytest.mark.parametrize("number", [-1, 4])
def test_indices_beyond_the_severity_are_refused(tmp_path, number):
    write_cifar_c(tmp_path)
    with pytest.raises(IndexError, match=f"between 0 and 3, got {number}"):
        load("cifar10c", tmp_path, severity=3).domains[0].images.read([0, number])


def test_missing_label_file(tmp_path):
    write_cifar_c(tmp_path)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(DataError, match=r"labels\.npy: missing \(`ramen data download cifar10c`, or https"):
        load("cifar10c", tmp_path)


def test_every_missing_file_is_named(tmp_path):
    write_cifar_c(tmp_path)
    (tmp_path / "fog.npy").unlink()
    (tmp_path / "snow.npy").unlink()
    assert [error.split(": ")[0] for error in errors(tmp_path)] == [
        str(tmp_path / "snow.npy"),
        str(tmp_path / "fog.npy"),
    ]
    assert len(load("cifar10c", tmp_path, domains=["frost"])) == 4


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((15, 32, 32, 3), np.uint8), "has 15 images for the 20 labels"),
        (np.zeros((25, 32, 32, 3), np.uint8), "has 25 images for the 20 labels"),
        (np.zeros((20, 32, 32, 3), np.float32), r"must be uint8 \(n, 32, 32, 3\), got float32"),
        (np.zeros((20, 3, 32, 32), np.uint8), r"got uint8 \(20, 3, 32, 32\)"),
        (np.zeros((20, 32, 32), np.uint8), r"got uint8 \(20, 32, 32\)"),
    ],
)
def test_wrong_arrays(tmp_path, array, message):
    write_cifar_c(tmp_path)
    np.save(tmp_path / "fog.npy", array)
    with pytest.raises(DataError, match=r"fog\.npy: .*" + message):
        load("cifar10c", tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.tile([0, 1, 2, 10], 5), "between 0 and 9, got 0 to 10"),
        (np.tile([0, 1, 2, -1], 5), "got -1 to 2"),
        (np.zeros(20), "must be whole numbers in one dimension, got float64"),
        (np.zeros((20, 1), np.int64), "whole numbers in one dimension"),
        (np.arange(20) % 10, "same images at each of 5 severities"),
        (np.zeros(0, np.int64), "has no labels"),
        (np.zeros(19, np.int64), "the 19 labels must be"),
    ],
)
def test_wrong_labels(tmp_path, labels, message):
    write_cifar_c(tmp_path)
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(DataError, match=r"labels\.npy: .*" + message):
        load("cifar10c", tmp_path)


@pytest.mark.parametrize("kept", [0, 3, 60, 5000])
def test_truncated_files(tmp_path, kept):
    write_cifar_c(tmp_path)
    path = tmp_path / "fog.npy"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"fog\.npy: cannot be read as an array"):
        load("cifar10c", tmp_path)


def test_no_pickle_is_loaded(tmp_path):
    write_cifar_c(tmp_path)
    np.save(tmp_path / "labels.npy", np.array([{}] * 20, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"labels\.npy: cannot be read as an array"):
        load("cifar10c", tmp_path)
    (tmp_path / "labels.npy").write_bytes(pickle.dumps([0] * 20))
    with pytest.raises(DataError, match=r"labels\.npy: cannot be read as an array"):
        load("cifar10c", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"severity": 0}, "severity must be between 1 and 5, got 0"),
        ({"severity": 6}, "severity must be between 1 and 5, got 6"),
        ({"domains": ["fgo"]}, "no domain is called 'fgo'; did you mean 'fog'"),
        ({"domains": ["fog", "fog"]}, "must differ"),
        ({"domains": []}, "must be a list of names"),
        ({"domains": "fog"}, "must be a list of names, got 'fog'"),
        ({"severty": 1}, "cifar10c has no option 'severty'; did you mean 'severity'"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    write_cifar_c(tmp_path)
    with pytest.raises(ValueError, match=message):
        load("cifar10c", tmp_path, **options)
