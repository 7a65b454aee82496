"""Data sets that are folders of images: DomainBed's, one's own, tables of files."""

import pytest

from ramen.data.formats.domainbed import RELEASES
from ramen.data.formats.reading import DataError
from ramen.data.registry import load, read
from tests.fakes.layouts import write_image, write_tree


def levels(reading):
    return [finding.level for finding in reading.findings]


def class_list(count):
    return [f"Class_{number:03d}" for number in range(count)]


def test_a_folder_of_domains(tmp_path):
    write_tree(tmp_path, ["summer", "autumn"], ["red_fox", "bear"])
    write_image(tmp_path / "winter/wolf/Z.PNG")
    data = load("folder", tmp_path)
    assert data.classes == ("bear", "red fox", "wolf")
    assert [domain.name for domain in data.domains] == ["autumn", "summer", "winter"]
    autumn, _, winter = data.domains
    assert autumn.labels.tolist() == [0, 0, 1, 1]
    assert autumn.pictures.read([3, 0]) == [tmp_path / "autumn/red_fox/b.jpg", tmp_path / "autumn/bear/a.jpg"]
    assert winter.labels.tolist() == [2]
    assert winter.pictures.read([0])[0].is_file()


def test_the_choice_of_domains_does_not_renumber_the_classes(tmp_path):
    write_tree(tmp_path, ["summer"], ["bear"])
    write_tree(tmp_path, ["winter"], ["wolf"])
    data = load("folder", tmp_path, domains=["winter"])
    assert data.classes == ("bear", "wolf")
    assert data.domains[0].labels.tolist() == [1, 1]


def test_what_is_left_out_of_a_folder_is_said(tmp_path):
    write_tree(tmp_path, ["summer"], ["bear"])
    (tmp_path / "summer/bear/notes.txt").touch()
    (tmp_path / "summer/bear/.DS_Store").touch()
    (tmp_path / "summer/list.txt").touch()
    (tmp_path / "summer/wolf").mkdir()
    reading = read("folder", tmp_path)
    told = list(map(str, reading.findings))
    assert set(levels(reading)) == {"note"}
    assert len(told) == 3
    assert "notes.txt" in told[0]
    assert "DS_Store" not in told[0]
    assert "list.txt: is left out" in told[1]
    assert "has no image of 1 classes: wolf" in told[2]
    assert len(reading.dataset()) == 2


def test_empty_domain(tmp_path):
    write_tree(tmp_path, ["summer"], ["bear"])
    (tmp_path / "winter/bear").mkdir(parents=True)
    with pytest.raises(DataError, match="winter: has no image in any class folder"):
        load("folder", tmp_path)
    assert len(load("folder", tmp_path, domains=["summer"])) == 2


def test_folders_that_are_not_there_or_empty(tmp_path):
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


@pytest.mark.parametrize("name", list(RELEASES))
def test_domainbed(tmp_path, name):
    release = RELEASES[name]
    write_tree(tmp_path / release.folders[0], release.domains, class_list(release.classes), ["a.jpg"])
    data = load(name, tmp_path)
    assert [domain.name for domain in data.domains] == list(release.domains)
    assert data.classes[1] == "Class 001"
    assert all(domain.labels.tolist() == list(range(release.classes)) for domain in data.domains)
    reading = read(name, tmp_path)
    counted = [count for count in release.domains.values() if count]
    assert levels(reading) == ["difference"] * len(counted)
    for finding, count in zip(reading.findings, counted, strict=True):
        assert f"{count - release.classes:,} missing" in finding.what
        assert "DomainBed" in finding.remedy


def test_domainnet_has_the_published_size():
    assert sum(RELEASES["domainnet"].domains.values()) == 586_575


def test_spellings_of_a_domain(tmp_path):
    write_tree(tmp_path, ["Art", "Clipart", "Product", "RealWorld"], class_list(65), ["a.jpg"])
    data = load("officehome", tmp_path)
    assert data.domains[3].name == "Real World"
    assert data.domains[3].pictures.read([0]) == [tmp_path / "RealWorld/Class_000/a.jpg"]


def test_missing_domain(tmp_path):
    write_tree(tmp_path, ["cartoon", "photo", "sketch"], class_list(7))
    with pytest.raises(DataError, match=r"art_painting: missing \(get it from https://github.com/facebook"):
        load("pacs", tmp_path)
    data = load("pacs", tmp_path, domains=["sketch", "photo"])
    assert [domain.name for domain in data.domains] == ["sketch", "photo"]


def test_unknown_class_folder(tmp_path):
    write_tree(tmp_path, RELEASES["pacs"].domains, class_list(7))
    write_image(tmp_path / "sketch/elephants/a.jpg")
    with pytest.raises(
        DataError, match=r"PACS has 7 classes, .* 8 class folders; few domains have 'elephants'"
    ):
        load("pacs", tmp_path)


def test_missing_class(tmp_path):
    write_tree(tmp_path, RELEASES["pacs"].domains, class_list(6))
    with pytest.raises(DataError, match="PACS has 7 classes, the domains here 6 class folders"):
        load("pacs", tmp_path)


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
    assert data.domains[0].pictures.read([1]) == [tmp_path / "deep/b.jpg"]
    assert data.domains[1].pictures.read([0])[0].is_file()
    assert len(data.identity["sha256"]) == 64
    assert load("manifest", path, domains=["day"]).classes == data.classes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column path, class, domain; its first line is nothing"),
        ("path,label,domain\na.jpg,1,x\n", "has no column class; its first line is path,label,domain"),
        ("path,class,domain\n", "has no line below the first"),
        ("path,class,domain\na.jpg,bear,x\na.jpg,,x\n", "table.csv, line 3: has no class"),
        ("path,class,domain\na.jpg,bear\n", "line 2: has no domain"),
        ("path,class,domain\na.jpg,bear,x\nb.jpg,bear,x\n", "1 of 2 files are missing: b.jpg"),
        ('path,class,domain\n"a.jpg,bear,x\n', "cannot be read"),
        ("path,class,domain\na.jpg,b\x00ear,x\nb.jpg,bear,x\n", "missing: b.jpg|cannot be read"),
    ],
)
def test_wrong_tables(tmp_path, text, message):
    write_image(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=message):
        load("manifest", write_manifest(tmp_path, text))


def test_tables_that_are_no_text(tmp_path):
    with pytest.raises(DataError, match=r"table.csv: missing"):
        load("manifest", tmp_path / "table.csv")
    with pytest.raises(DataError, match="is not a file"):
        load("manifest", tmp_path)
    path = tmp_path / "table.csv"
    path.write_bytes(b"path,class,domain\n\xff\xfe\x00,a,b\n")
    with pytest.raises(DataError, match=r"cannot be read: 'utf-8' codec"):
        load("manifest", path)


def test_a_file_named_twice_is_said(tmp_path):
    write_image(tmp_path / "a.jpg")
    path = write_manifest(tmp_path, "path,class,domain\na.jpg,bear,x\n./a.jpg,bear,y\n")
    reading = read("manifest", path)
    assert [str(finding) for finding in reading.findings] == [
        f"{path}: 1 files are named more than once: a.jpg"
    ]


def test_unknown_names():
    with pytest.raises(ValueError, match="no data set is called 'domainet'; did you mean 'domainnet'"):
        load("domainet", ".")
    with pytest.raises(ValueError, match="pacs has no option 'severity'"):
        load("pacs", ".", severity=5)
