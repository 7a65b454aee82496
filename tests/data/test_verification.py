"""Verifying the files of a data set."""

import hashlib
import json
from dataclasses import replace

import numpy as np
from PIL import Image

from ramen.data import catalogue
from ramen.data.verification import verify
from ramen.images.preprocess import MAX_PIXELS, Preprocess
from tests.fakes.layouts import write_cifar_c, write_image, write_tree


def test_smaller_files_load_but_differ_from_the_release(tmp_path):
    write_cifar_c(tmp_path)
    result = verify("cifar10c", tmp_path)
    assert not result.ok
    assert [finding.level for finding in result.findings] == ["difference"]
    (tmp_path / "made.json").write_text(json.dumps({"seed": 0}))
    assert verify("cifar10c", tmp_path).ok


def test_checksums_of_archives_next_to_the_data(released, monkeypatch):
    path = released.parent / "CIFAR-10-C.tar"
    path.write_bytes(b"archive")
    try:
        result = verify("cifar10c", released, domains=["fog"])
        assert not result.ok
        assert "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar" in result.findings[0].remedy
        info = catalogue.describe("cifar10c")
        known = replace(info.archives[0], md5=hashlib.md5(b"archive").hexdigest())
        monkeypatch.setitem(catalogue._DATASETS, "cifar10c", replace(info, archives=(known,)))
        assert verify("cifar10c", released, domains=["fog"]).ok
    finally:
        path.unlink()


def enormous_png(side):
    """A PNG whose header promises more pixels than anyone should decode."""
    import struct
    import zlib

    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    end = b"IEND"
    chunks = [header, b"IDAT" + zlib.compress(b""), end]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    )


def test_deep_decodes_every_image_and_names_the_damaged(tmp_path):
    write_tree(tmp_path, ["summer", "winter"], ["bear", "wolf"])
    assert verify("folder", tmp_path, deep=True).ok
    sound = (tmp_path / "summer/bear/a.jpg").read_bytes()
    write_image(tmp_path / "summer/bear/c.jpg", size=(200, 200))
    whole = (tmp_path / "summer/bear/c.jpg").read_bytes()
    (tmp_path / "summer/bear/c.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "summer/wolf/a.jpg").write_bytes(b"")
    (tmp_path / "winter/bear/a.jpg").write_bytes(b"<html>not found</html>")
    Image.fromarray(np.array([[0, 5000]], np.float32)).save(tmp_path / "winter/bear/b.jpg", "TIFF")
    (tmp_path / "winter/wolf/huge.png").write_bytes(enormous_png(int(MAX_PIXELS**0.5) + 1))
    assert sound == (tmp_path / "summer/bear/b.jpg").read_bytes()

    assert verify("folder", tmp_path).ok  # without --deep no image is opened
    calls = []
    result = verify("folder", tmp_path, deep=True, progress=lambda *what: calls.append(what))
    assert calls[-1] == ("images decoded", 10, 10)
    assert not result.ok
    assert [finding.where.removeprefix(f"{tmp_path}/") for finding in result.findings] == [
        "summer/bear/c.jpg",
        "summer/wolf/a.jpg",
        "winter/bear/a.jpg",
        "winter/bear/b.jpg",
        "winter/wolf/huge.png",
    ]
    assert all(finding.level == "error" for finding in result.findings)


def test_the_preprocessing_takes_what_is_read(tmp_path):
    write_cifar_c(tmp_path / "arrays")
    write_tree(tmp_path / "files", ["summer"], ["bear"])
    for name, folder in (("cifar10c", "arrays"), ("folder", "files")):
        data = catalogue.load(name, tmp_path / folder)
        assert Preprocess((24, 24))(data.domains[0].images.read([1, 0])).shape == (2, 3, 24, 24)
