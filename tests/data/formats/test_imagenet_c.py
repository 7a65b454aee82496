"""ImageNet-C in the layout of its release: complete, partial and damaged."""

import hashlib

import pytest
from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

from ramen.data.corruptions import CORRUPTIONS
from ramen.data.formats.reading import DataError
from ramen.data.registry import load, read
from tests.fakes.layouts import touch_imagenet_c, wnids, write_tree

TWO = ["snow", "fog"]
LIST = "imagenet_test_image_ids.txt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two corruptions with all thousand classes, two images each."""
    root = tmp_path_factory.mktemp("whole") / "ImageNet-C"
    touch_imagenet_c(root, TWO, wnids(), images=("x2.JPEG", "x1.JPEG"))
    return root


def write_names(folder, classes, name="classnames.txt"):
    path = folder / name
    path.write_text("".join(f"{wnid} name_of {wnid}\n" for wnid in classes))
    return path


def test_all_images(whole):
    data = load("imagenetc", whole, domains=TWO)
    assert [domain.name for domain in data.domains] == TWO
    assert data.classes == tuple(IMAGENET_CLASSNAMES)
    assert data.identity == {"severity": 5, "class_names": "open_clip"}
    assert data.domains[1].labels.tolist() == [number for number in range(1000) for _ in range(2)]
    assert data.domains[1].images.read([1999, 0]) == [
        whole / "fog/5/n00001000/x2.JPEG",
        whole / "fog/5/n00000001/x1.JPEG",
    ]
    assert len(load("imagenetc", whole.parent, domains=TWO)) == 4000


def test_counts_other_than_the_released_ones_are_reported(whole):
    findings = read("imagenetc", whole, domains=TWO).findings
    assert [finding.level for finding in findings] == ["difference"] * 2
    assert "has 2,000 images, the released folder has 50,000" in str(findings[0])


def test_names_from_a_file(whole, tmp_path):
    path = write_names(tmp_path, reversed(wnids()))
    data = load("imagenetc", whole, domains=TWO, class_names=path)
    assert data.classes[:2] == ("name of n00000001", "name of n00000002")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert data.identity["class_names"] == {"file": "classnames.txt", "sha256": digest}


def test_a_file_of_names_next_to_the_data_is_found(tmp_path):
    touch_imagenet_c(tmp_path / "set", TWO, wnids(3))
    write_names(tmp_path, wnids())
    data = load("imagenetc", tmp_path / "set", domains=TWO)
    assert len(data.classes) == 1000
    assert data.domains[0].labels.tolist() == [0, 1, 2]


def test_part_of_the_classes_needs_a_file_of_names(tmp_path):
    touch_imagenet_c(tmp_path, TWO, wnids(997))
    with pytest.raises(
        DataError, match=r"997 class folders, ImageNet has 1,000.*classnames\.txt next to the data"
    ):
        load("imagenetc", tmp_path, domains=TWO)


def test_unknown_class_folder(tmp_path):
    touch_imagenet_c(tmp_path, ["fog"], [*wnids(3), "tmp"])
    with pytest.raises(DataError, match="not of ImageNet: tmp"):
        load("imagenetc", tmp_path, domains=["fog"])
    path = write_names(tmp_path, wnids(3))
    with pytest.raises(DataError, match="does not name 1 class folders: tmp"):
        load("imagenetc", tmp_path, domains=["fog"], class_names=path)


def test_your_own_set_in_this_layout(tmp_path):
    write_tree(tmp_path, [f"{name}/3" for name in CORRUPTIONS], ["red_fox", "bear"])
    data = load("imagenetc", tmp_path, severity=3)
    assert data.classes == ("bear", "red fox")
    assert data.identity == {"severity": 3, "class_names": "folders"}
    assert len(data) == 15 * 4
    assert read("imagenetc", tmp_path, severity=3).findings == []


@pytest.mark.parametrize("text", ["n00000001\n", "n00000001 a\nn00000001 b\n", ""])
def test_damaged_files_of_names(tmp_path, text):
    touch_imagenet_c(tmp_path, ["fog"], wnids(3))
    (tmp_path / "classnames.txt").write_text(text)
    with pytest.raises(DataError, match=r"classnames\.txt: (must have|is empty)"):
        load("imagenetc", tmp_path, domains=["fog"])


def test_missing_severity(whole):
    with pytest.raises(DataError, match=r"fog/2: missing \(get it from https://zenodo.org/records/2235448\)"):
        load("imagenetc", whole, severity=2, domains=["fog"])


def test_listed_images_in_the_order_of_the_list(whole, tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("n00000500/x2.JPEG\nn00000003/x1.JPEG\n\n")
    data = load("imagenetc5k", whole, domains=TWO, image_list=path)
    assert len(data.classes) == 1000
    assert data.domains[0].labels.tolist() == [499, 2]
    assert data.domains[1].images.read([0]) == [whole / "fog/5/n00000500/x2.JPEG"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert data.identity["image_list"] == {"file": "list.txt", "pictures": 2, "sha256": digest}
    findings = read("imagenetc5k", whole, domains=TWO, image_list=path).findings
    assert [str(f).split(" (")[0] for f in findings] == [
        f"{path}: names 2 images, the published list names 5,000"
    ]


def test_the_list_is_found_next_to_the_data(tmp_path):
    touch_imagenet_c(tmp_path, TWO, wnids(2))
    write_names(tmp_path, wnids())
    (tmp_path / LIST).write_text("n00000002/ILSVRC2012_val_00000002.JPEG\n")
    assert load("imagenetc5k", tmp_path, domains=TWO).domains[0].labels.tolist() == [1]


def test_missing_list(whole):
    with pytest.raises(DataError, match=f"{LIST}: the list of images is missing: .*RobustBench"):
        load("imagenetc5k", whole, domains=TWO)
    with pytest.raises(DataError, match=r"nothing\.txt: cannot be read"):
        load("imagenetc5k", whole, domains=TWO, image_list="nothing.txt")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("n00000001/x9.JPEG", "fog/5: 1 of 2 listed images are missing: n00000001/x9.JPEG"),
        ("n00002000/x1.JPEG", "class folders that do not exist: n00002000"),
        ("x1.JPEG", "line 2: 'x1.JPEG' must be a class folder, a slash and a file name"),
        ("../x1.JPEG", "line 2: .* must be a class folder"),
        ("/x1.JPEG", "line 2: .* must be a class folder"),
        ("n00000001/x1.JPEG", "line 2: .* is listed twice"),
    ],
)
def test_damaged_lists(whole, tmp_path, line, message):
    path = tmp_path / "list.txt"
    path.write_text(f"n00000001/x1.JPEG\n{line}\n")
    with pytest.raises(DataError, match=message):
        load("imagenetc5k", whole, domains=["fog"], image_list=path)
