"""Every layout that is read: what is in it, and whether what is wrong with it is named."""

import hashlib
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

from ramen.data import arrays
from ramen.data.catalogue import describe, load, read
from ramen.data.corruptions import CORRUPTIONS
from ramen.data.dataset import ArrayFileImages
from ramen.data.reading import DataError
from ramen.data.streams import make_stream
from tests.fakes.layouts import touch_imagenet_c, wnids, write_cifar_c, write_image, write_tree

TWO = ["snow", "fog"]
LIST = "imagenet_test_image_ids.txt"


def levels(reading):
    return [finding.level for finding in reading.findings]


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- CIFAR-C ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_a_severity_is_its_own_rows(tmp_path, severity):
    labels = write_cifar_c(tmp_path)
    data = load("cifar10c", tmp_path, severity=severity)
    assert [domain.name for domain in data.domains] == list(CORRUPTIONS)
    assert (data.classes, data.identity, len(data)) == (arrays.CIFAR10, {"severity": severity}, 15 * 4)
    for number, domain in enumerate(data.domains):
        pixels = domain.images.read([3, 0, 3])
        assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, 3, 32, 32))
        first = (severity - 1) * 4
        assert pixels[:, :, 5, 6].tolist() == [[first + i, severity, number] for i in (3, 0, 3)]
        assert domain.labels.tolist() == labels[first : first + 4].tolist()
    with pytest.raises(IndexError, match="-1"):
        data.domains[0].images.read([0, -1])


def test_rows_and_columns_of_pixels_keep_their_positions(tmp_path):
    array = np.arange(10 * 32 * 32 * 3, dtype=np.int64).reshape(10, 32, 32, 3).astype(np.uint8)
    np.save(tmp_path / "fog.npy", array)
    pixels = ArrayFileImages(tmp_path / "fog.npy", 2, 5).read([1, 4])
    assert np.array_equal(pixels.numpy(), array[[3, 6]].transpose(0, 3, 1, 2))


def test_cifar_100_in_the_parent_folder(tmp_path):
    write_cifar_c(tmp_path / "CIFAR-100-C", classes=100, corruptions=["spatter", "fog"])
    data = load("cifar100c", str(tmp_path), domains=["fog", "spatter"])
    assert [domain.name for domain in data.domains] == ["fog", "spatter"]
    assert len(set(data.classes)) == 100
    assert (data.classes[1], data.classes[99]) == ("aquarium fish", "worm")
    assert list(data.classes) == sorted(data.classes)  # the official indices are alphabetical


def test_a_single_severity_has_a_folder(tmp_path):
    write_cifar_c(tmp_path / "CIFAR-10-C/severity_3", count=7, severities=1)
    data = load("cifar10c", tmp_path, severity=3)
    assert data.domains[0].labels.tolist() == [number * 7 % 10 for number in range(7)]
    assert data.domains[1].images.read([6])[0, :, 0, 0].tolist() == [6, 1, 1]
    with pytest.raises(DataError, match=r"labels\.npy"):
        load("cifar10c", tmp_path)
    write_cifar_c(tmp_path / "CIFAR-10-C", count=3)  # files of all severities override it
    assert len(load("cifar10c", tmp_path, severity=3).domains[0]) == 3


def test_the_record_of_a_made_set_is_part_of_its_identity(tmp_path):
    write_cifar_c(tmp_path)
    (tmp_path / "made.json").write_text('{"seed": 4}')
    assert load("cifar10c", tmp_path).identity == {"severity": 5, "made": {"seed": 4}}


def test_only_the_requested_rows_are_read_and_sent(tmp_path):
    np.save(tmp_path / "labels.npy", np.zeros(50_000, dtype=np.int64))
    np.lib.format.open_memmap(tmp_path / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    tracemalloc.start()
    images = load("cifar10c", tmp_path, domains=["fog"]).domains[0].images
    images.read(range(100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6  # the file has 154 MB, its labels 0.4 MB
    message = pickle.dumps(images)
    assert len(message) < 2000
    assert torch.equal(pickle.loads(message).read([1, 2]), images.read([1, 2]))


# -- folders ----------------------------------------------------------------------------------------


def class_list(count):
    return [f"Class_{number:03d}" for number in range(count)]


def test_a_folder_of_domains(tmp_path):
    write_tree(tmp_path, ["summer", "autumn"], ["red_fox", "bear"])
    write_image(tmp_path / "winter/wolf/Z.PNG")
    data = load("folder", tmp_path)
    assert data.classes == ("bear", "red fox", "wolf")
    assert [domain.name for domain in data.domains] == ["autumn", "summer", "winter"]
    autumn = data.domains[0]
    assert autumn.labels.tolist() == [0, 0, 1, 1]
    assert autumn.images.read([3, 0]) == [tmp_path / "autumn/red_fox/b.jpg", tmp_path / "autumn/bear/a.jpg"]
    # the choice of domains does not change the class indices
    assert load("folder", tmp_path, domains=["winter"]).domains[0].labels.tolist() == [2]


def test_what_is_ignored_is_reported(tmp_path):
    write_tree(tmp_path, ["summer"], ["bear"])
    for name in ("summer/bear/notes.txt", "summer/bear/.DS_Store", "summer/list.txt"):
        (tmp_path / name).touch()
    (tmp_path / "summer/wolf").mkdir()
    reading = read("folder", tmp_path)
    notes = " ".join(map(str, reading.findings))
    assert set(levels(reading)) == {"note"}
    assert all(name in notes for name in ("notes.txt", "list.txt", "wolf"))
    assert "DS_Store" not in notes
    assert len(reading.dataset()) == 2


@pytest.mark.parametrize("name", ["domainnet", "pacs", "vlcs", "officehome", "terraincognita"])
def test_domainbed(tmp_path, name):
    release = describe(name)
    write_tree(tmp_path / release.folders[0], release.counts, class_list(release.classes), ["a.jpg"])
    data = load(name, tmp_path)
    assert [domain.name for domain in data.domains] == list(release.counts)
    assert data.classes[1] == "Class 001"
    assert all(domain.labels.tolist() == list(range(release.classes)) for domain in data.domains)
    counted = [count for count in release.counts.values() if count]
    findings = read(name, tmp_path).findings
    assert [finding.level for finding in findings] == ["difference"] * len(counted)
    for finding, count in zip(findings, counted, strict=True):
        assert f"{count - release.classes:,}" in finding.what


def test_spellings_of_a_domain(tmp_path):
    write_tree(tmp_path, ["Art", "Clipart", "Product", "RealWorld"], class_list(65), ["a.jpg"])
    data = load("officehome", tmp_path)
    assert data.domains[3].name == "Real World"
    assert data.domains[3].images.read([0]) == [tmp_path / "RealWorld/Class_000/a.jpg"]


# -- ImageNet-C -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two corruptions with all thousand classes, two images each."""
    root = tmp_path_factory.mktemp("whole") / "ImageNet-C"
    touch_imagenet_c(root, TWO, wnids(), images=("x2.JPEG", "x1.JPEG"))
    return root


def write_names(folder, classes):
    path = folder / "classnames.txt"
    path.write_text("".join(f"{wnid} name_of {wnid}\n" for wnid in classes))
    return path


def test_imagenet_c(whole):
    data = load("imagenetc", whole, domains=TWO)
    assert data.classes == tuple(IMAGENET_CLASSNAMES)
    assert data.identity == {"severity": 5, "class_names": "open_clip"}
    assert data.domains[1].labels.tolist() == [number for number in range(1000) for _ in range(2)]
    last, first = whole / "fog/5/n00001000/x2.JPEG", whole / "fog/5/n00000001/x1.JPEG"
    assert data.domains[1].images.read([1999, 0]) == [last, first]
    assert len(load("imagenetc", whole.parent, domains=TWO)) == 4000
    assert levels(read("imagenetc", whole, domains=TWO)) == ["difference"] * 2  # 50,000 were released


def test_names_from_a_file(whole, tmp_path):
    path = write_names(tmp_path, reversed(wnids()))
    data = load("imagenetc", whole, domains=TWO, class_names=path)
    assert data.classes[:2] == ("name of n00000001", "name of n00000002")
    assert data.identity["class_names"] == {"file": "classnames.txt", "sha256": sha256(path)}
    touch_imagenet_c(tmp_path / "set", TWO, wnids(3))  # the file beside the data is found
    data = load("imagenetc", tmp_path / "set", domains=TWO)
    assert (len(data.classes), data.domains[0].labels.tolist()) == (1000, [0, 1, 2])


def test_your_own_set_in_this_layout(tmp_path):
    write_tree(tmp_path, [f"{name}/3" for name in CORRUPTIONS], ["red_fox", "bear"])
    data = load("imagenetc", tmp_path, severity=3)
    assert data.classes == ("bear", "red fox")
    assert data.identity == {"severity": 3, "class_names": "folders"}
    assert read("imagenetc", tmp_path, severity=3).findings == []


def test_listed_images_in_the_order_of_the_list(whole, tmp_path):
    path = tmp_path / LIST
    path.write_text("n00000500/x2.JPEG\nn00000003/x1.JPEG\n\n")
    data = load("imagenetc5k", whole, domains=TWO, image_list=path)
    assert (len(data.classes), data.domains[0].labels.tolist()) == (1000, [499, 2])
    assert data.domains[1].images.read([0]) == [whole / "fog/5/n00000500/x2.JPEG"]
    assert data.identity["image_list"] == {"file": LIST, "pictures": 2, "sha256": sha256(path)}
    assert levels(read("imagenetc5k", whole, domains=TWO, image_list=path)) == ["difference"]


# -- tables and arrays ------------------------------------------------------------------------------


def write_manifest(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding=encoding)
    return path


def test_a_table_of_files(tmp_path):
    for name in ("a.jpg", "deep/b.jpg", "c, d.jpg"):
        write_image(tmp_path / name)
    text = 'domain,path,class,note\nnight,a.jpg,red_fox,x\nday,"c, d.jpg",bear,\nnight,deep/b.jpg,bear,\n'
    path = write_manifest(tmp_path, text, "utf-8-sig")
    data = load("manifest", path)
    assert data.classes == ("bear", "red fox")
    assert [domain.name for domain in data.domains] == ["night", "day"]
    assert data.domains[0].labels.tolist() == [1, 0]
    assert data.domains[0].images.read([1]) == [tmp_path / "deep/b.jpg"]
    assert data.identity["sha256"] == sha256(path)
    assert load("manifest", path, domains=["day"]).classes == data.classes
    path = write_manifest(tmp_path, "path,class,domain\na.jpg,bear,x\n./a.jpg,bear,y\n")
    assert levels(read("manifest", path)) == ["note"]  # a file is named twice


def test_several_data_sets_in_one_stream(tmp_path):
    """The stream that others call potpourri: folders anywhere, one list of classes, all domains mixed."""
    names = ("c/fog/5/n01/a.JPEG", "c/fog/5/n02/b.JPEG", "r/n01/art.jpg", "sketch/goldfish/s.png")
    for name in names:
        write_image(tmp_path / name)
    classes = ("goldfish", "shark", "goldfish", "goldfish")
    lines = [f"{p},{c},{p.split('/')[0]}" for p, c in zip(names, classes, strict=True)]
    data = load("manifest", write_manifest(tmp_path, "\n".join(["path,class,domain", *lines])))
    stream = make_stream("potpourri", data, seed=1)
    assert stream.protocol == "mixed"
    paths = [str(path.relative_to(tmp_path)) for path in stream.read(slice(0, 4))]
    assert sorted(paths) == sorted(names)
    assert [classes[names.index(p)] for p in paths] == [data.classes[n] for n in stream.labels()]


PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 6, 3), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 0])


def write_arrays(folder, name="data.npz", **given):
    defaults = {"labels": LABELS, "clean": PIXELS[0], "fog": PIXELS[1], "snow": PIXELS[2]}
    content = {**defaults, "classes": np.array(["ant", "bee", "cow"]), **given}
    np.savez(folder / name, **{key: value for key, value in content.items() if value is not None})
    return folder / name


def test_arrays(tmp_path):
    data = load("arrays", write_arrays(tmp_path))
    assert data.classes == ("ant", "bee", "cow")
    assert [domain.name for domain in data.domains] == ["fog", "snow"]  # the clean one only on request
    assert data.domains[0].labels.tolist() == LABELS.tolist()
    found = data.domains[0].images.read([2, 0])
    assert np.array_equal(found.numpy(), PIXELS[1][[2, 0]].transpose(0, 3, 1, 2))
    chosen = load("arrays", tmp_path / "data.npz", domains=["snow", "clean"])
    assert np.array_equal(chosen.domains[1].images.read([3])[0].numpy(), PIXELS[0][3].transpose(2, 0, 1))
    other = load("arrays", write_arrays(tmp_path, "other.npz", fog=255 - PIXELS[1]))
    assert other.identity["sha256"] != data.identity["sha256"]


@pytest.mark.parametrize(
    ("given", "names"),
    [("cifar10", arrays.CIFAR10), ("x, y ,z", ("x", "y", "z")), (["x", "y", "z"], ("x", "y", "z"))],
)
def test_given_classes_override_those_of_the_file(tmp_path, given, names):
    assert load("arrays", write_arrays(tmp_path), classes=given).classes == names


# -- what is wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("fog", np.zeros((15, 32, 32, 3), np.uint8)),  # 20 labels
        ("fog", np.zeros((20, 32, 32, 3), np.float32)),
        ("fog", np.zeros((20, 3, 32, 32), np.uint8)),
        ("fog", b""),
        ("fog", b"\x93NUMPY\x01\x00"),
        ("labels", np.tile([0, 1, 2, 10], 5)),
        ("labels", np.tile([0, 1, 2, -1], 5)),
        ("labels", np.zeros(20)),
        ("labels", np.zeros((20, 1), np.int64)),
        ("labels", np.arange(20) % 10),  # other images at each severity
        ("labels", np.zeros(0, np.int64)),
        ("labels", np.zeros(19, np.int64)),
        ("labels", pickle.dumps([0] * 20)),  # is never loaded
        ("labels", np.array([{}] * 20, dtype=object)),
        ("labels", None),
        ("fog", None),
    ],
)
def test_wrong_arrays_of_cifar_c(tmp_path, file, content):
    write_cifar_c(tmp_path)
    path = tmp_path / f"{file}.npy"
    if isinstance(content, np.ndarray):
        np.save(path, content, allow_pickle=True)
    else:
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{file}\.npy"):
        load("cifar10c", tmp_path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"severity": 0}, "severity"),
        ({"severity": 6}, "severity"),
        ({"domains": ["fgo"]}, "fgo"),
        ({"domains": ["fog", "fog"]}, "domains"),
        ({"domains": []}, "domains"),
        ({"domains": "fog"}, "domains"),
        ({"severty": 1}, "severty"),
    ],
)
def test_wrong_options(tmp_path, options, named):
    write_cifar_c(tmp_path)
    with pytest.raises(ValueError, match=named):
        load("cifar10c", tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "root", "options", "named"),
    [
        ("tiny", "DATA", {}, "root"),
        ("cifar10c", None, {}, "root"),
        ("domainet", ".", {}, "domainnet"),
        ("pacs", ".", {"severity": 5}, "severity"),
    ],
)
def test_what_there_is_not(name, root, options, named):
    with pytest.raises(ValueError, match=named):
        read(name, root, **options)


def without(folder, domains, count, other=()):
    write_tree(folder, domains, class_list(count), ["a.jpg"])
    for name in other:
        write_image(folder / name)


@pytest.mark.parametrize(
    ("name", "domains", "classes", "other", "named"),
    [
        ("pacs", ["cartoon", "photo", "sketch"], 7, (), "art_painting"),
        ("pacs", describe("pacs").counts, 7, ["sketch/elephants/a.jpg"], "elephants"),
        ("pacs", describe("pacs").counts, 6, (), "6"),
        ("folder", ["summer"], 1, ["winter.jpg"], "nothing"),
        ("folder", ["summer"], 1, ["summer/Class 000/b.jpg"], "Class_000"),  # the same name twice
    ],
)
def test_wrong_folders(tmp_path, name, domains, classes, other, named):
    without(tmp_path, domains, classes, other)
    if named == "nothing":
        tmp_path, named = tmp_path / "winter.jpg", "winter.jpg"
    with pytest.raises(DataError, match=named):
        load(name, tmp_path)


def test_folders_without_images(tmp_path):
    for made in (None, "winter/bear"):
        if made:
            (tmp_path / made).mkdir(parents=True)
        with pytest.raises(DataError, match="winter" if made else "folder"):
            load("folder", tmp_path)
    write_tree(tmp_path, ["summer"], ["bear"])
    assert len(load("folder", tmp_path, domains=["summer"])) == 2


@pytest.mark.parametrize(
    ("classes", "names", "named"),
    [
        (wnids(997), None, r"classnames\.txt"),
        ([*wnids(3), "tmp"], None, "tmp"),
        ([*wnids(3), "tmp"], wnids(3), "tmp"),
        (wnids(3), ["n00000001"], r"classnames\.txt"),
        (wnids(1), [], r"classnames\.txt"),
    ],
)
def test_wrong_classes_of_imagenet_c(tmp_path, classes, names, named):
    touch_imagenet_c(tmp_path, ["fog"], classes)
    if names is not None:
        write_names(tmp_path, names)
    with pytest.raises(DataError, match=named):
        load("imagenetc", tmp_path, domains=["fog"])


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("n00000001/x9.JPEG", r"x9\.JPEG"),
        ("n00002000/x1.JPEG", "n00002000"),
        ("x1.JPEG", "line 2"),
        ("../x1.JPEG", "line 2"),
        ("/x1.JPEG", "line 2"),
        ("n00000001/x1.JPEG", "line 2"),  # a second time
        (None, r"list\.txt"),
    ],
)
def test_wrong_lists_of_imagenet_c(whole, tmp_path, line, named):
    path = tmp_path / "list.txt"
    if line is not None:
        path.write_text(f"n00000001/x1.JPEG\n{line}\n")
    with pytest.raises(DataError, match=named):
        load("imagenetc5k", whole, domains=["fog"], image_list=path)
    with pytest.raises(DataError, match=LIST):
        load("imagenetc5k", whole, domains=["fog"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "path, class, domain"),
        ("path,label,domain\na.jpg,1,x\n", "class"),
        ("path,class,domain\n", r"table\.csv"),
        ("path,class,domain\na.jpg,bear,x\na.jpg,,x\n", "line 3"),
        ("path,class,domain\na.jpg,bear\n", "line 2"),
        ("path,class,domain\na.jpg,bear,x\nb.jpg,bear,x\n", r"b\.jpg"),
        ('path,class,domain\n"a.jpg,bear,x\n', r"table\.csv"),
        (b"path,class,domain\n\xff\xfe\x00,a,b\n", r"table\.csv"),
        (None, r"table\.csv"),
    ],
)
def test_wrong_tables(tmp_path, text, named):
    write_image(tmp_path / "a.jpg")
    if text is not None:
        (tmp_path / "table.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=named):
        load("manifest", tmp_path / "table.csv")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"fog": PIXELS[1][:3]}, "fog"),
        ({"fog": PIXELS[1].astype(np.float32)}, "fog"),
        ({"fog": PIXELS[1][..., 0]}, "fog"),
        ({"labels": None}, "labels"),
        ({"labels": LABELS - 1}, "labels"),
        ({"labels": LABELS / 2}, "labels"),
        ({"fog": None, "snow": None}, "domain"),
        ({"fog": np.array([{}], dtype=object)}, "fog"),
        ({"classes": np.array([{}], dtype=object)}, "classes"),
        ({"classes": None}, "classes"),
    ],
)
def test_wrong_arrays(tmp_path, given, named):
    with pytest.raises(ValueError, match=named):
        load("arrays", write_arrays(tmp_path, **given))
    with pytest.raises(ValueError, match="classes"):
        load("arrays", write_arrays(tmp_path), classes="x,y")


def test_damaged_files_of_arrays(tmp_path):
    path = write_arrays(tmp_path)
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("snow.npy").header_offset + 200
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="snow"):
        load("arrays", path)
    path.write_bytes(bytes(content[:300]))
    with pytest.raises(DataError, match=r"data\.npz"):
        load("arrays", path)
    np.save(tmp_path / "one.npy", PIXELS)
    for name in ("one.npy", "no.npz"):
        with pytest.raises(DataError, match=name):
            load("arrays", tmp_path / name)
