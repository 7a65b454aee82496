"""Data sets in a table of image files."""

import pytest

from ramen.data.formats.reading import DataError
from ramen.data.registry import load, read
from tests.fakes.layouts import write_image


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
    assert data.domains[1].images.read([0])[0].is_file()
    assert len(data.identity["sha256"]) == 64
    assert load("manifest", path, domains=["day"]).classes == data.classes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column path, class, domain; its first line is empty"),
        ("path,label,domain\na.jpg,1,x\n", "has no column class; its first line is path,label,domain"),
        ("path,class,domain\n", "has no line after the first"),
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


def test_tables_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"table.csv: missing"):
        load("manifest", tmp_path / "table.csv")
    with pytest.raises(DataError, match="is not a file"):
        load("manifest", tmp_path)
    path = tmp_path / "table.csv"
    path.write_bytes(b"path,class,domain\n\xff\xfe\x00,a,b\n")
    with pytest.raises(DataError, match=r"cannot be read: 'utf-8' codec"):
        load("manifest", path)


def test_a_file_named_twice_is_reported(tmp_path):
    write_image(tmp_path / "a.jpg")
    path = write_manifest(tmp_path, "path,class,domain\na.jpg,bear,x\n./a.jpg,bear,y\n")
    reading = read("manifest", path)
    assert [str(finding) for finding in reading.findings] == [
        f"{path}: 1 files are named more than once: a.jpg"
    ]
