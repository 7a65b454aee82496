"""The data sets of DomainBed."""

import pytest

from ramen.data.formats.domainbed import RELEASES
from ramen.data.formats.reading import DataError
from ramen.data.registry import load, read
from tests.fakes.layouts import write_image, write_tree


def levels(reading):
    return [finding.level for finding in reading.findings]


def class_list(count):
    return [f"Class_{number:03d}" for number in range(count)]


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
    assert data.domains[3].images.read([0]) == [tmp_path / "RealWorld/Class_000/a.jpg"]


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
        DataError, match=r"PACS has 7 classes, but there are 8 class folders; few domains have 'elephants'"
    ):
        load("pacs", tmp_path)


def test_missing_class(tmp_path):
    write_tree(tmp_path, RELEASES["pacs"].domains, class_list(6))
    with pytest.raises(DataError, match="PACS has 7 classes, but there are 6 class folders"):
        load("pacs", tmp_path)
