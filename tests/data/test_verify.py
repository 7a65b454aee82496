"""``ramen data``: list, verify, download."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from ramen.cli import app
from ramen.data import registry
from ramen.data.verify import verify
from ramen.images.preprocess import MAX_PIXELS, Preprocess
from tests.fakes.layouts import write_cifar_c, write_image, write_tree

runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def released(tmp_path):
    """CIFAR-10-C in its full size, one corruption; the pictures are a hole in the file."""
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10_000) % 10, 5))
    array = np.lib.format.open_memmap(tmp_path / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    del array
    return tmp_path


def test_the_released_files_are_sound(released):
    result = run("verify", "cifar10c", "--root", released, "--domain", "fog")
    assert result.exit_code == 0, result.output
    assert "10 classes, 10,000 pictures" in result.output
    assert result.output.endswith("sound\n")


def test_verify_names_what_is_missing_and_where_to_get_it(released):
    result = run("verify", "cifar10c", "--root", released)
    assert result.exit_code == 1
    missing = [line for line in result.output.splitlines() if line.startswith("error:")]
    assert len(missing) == 14
    assert missing[0] == (
        f"error: {released}/gaussian_noise.npy: missing "
        "(`ramen data download cifar10c`, or https://zenodo.org/records/2535967)"
    )
    assert result.output.endswith("not sound\n")


def test_smaller_files_load_but_differ_from_the_release(tmp_path):
    write_cifar_c(tmp_path)
    result = verify("cifar10c", tmp_path)
    assert not result.ok
    assert [finding.level for finding in result.findings] == ["difference"]
    assert "has 20 labels, the released file 50,000" in str(result.findings[0])
    (tmp_path / "made.json").write_text(json.dumps({"seed": 0}))
    assert verify("cifar10c", tmp_path).ok


def test_checksums_of_archives_beside_the_data(released, monkeypatch):
    path = released.parent / "CIFAR-10-C.tar"
    path.write_bytes(b"archive")
    try:
        result = verify("cifar10c", released, domains=["fog"])
        assert not result.ok
        assert "has the md5" in str(result.findings[0])
        assert "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar" in result.findings[0].remedy
        info = registry.describe("cifar10c")
        known = replace(info.archives[0], md5=hashlib.md5(b"archive").hexdigest())
        monkeypatch.setitem(registry._RECORDS, "cifar10c", replace(info, archives=(known,)))
        result = verify("cifar10c", released, domains=["fog"])
        assert result.ok
        assert "has the checksum of the released archive" in str(result.findings[0])
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
    (tmp_path / "winter/wolf/huge.png").write_bytes(enormous_png(int(MAX_PIXELS**0.5) + 1))
    assert sound == (tmp_path / "summer/bear/b.jpg").read_bytes()

    assert verify("folder", tmp_path).ok  # without --deep no image is opened
    told = []
    result = verify("folder", tmp_path, deep=True, advance=lambda *what: told.append(what))
    assert told[-1] == ("images decoded", 10, 10)
    assert not result.ok
    assert [finding.where.removeprefix(f"{tmp_path}/") for finding in result.findings] == [
        "summer/bear/c.jpg",
        "summer/wolf/a.jpg",
        "winter/bear/a.jpg",
        "winter/wolf/huge.png",
    ]
    assert all(finding.level == "error" for finding in result.findings)
    assert "truncated" in result.findings[0].what
    assert f"more than {MAX_PIXELS}" in result.findings[3].what


def test_the_preprocessing_takes_what_is_read(tmp_path):
    write_cifar_c(tmp_path / "arrays")
    write_tree(tmp_path / "files", ["summer"], ["bear"])
    for data in (registry.load("cifar10c", tmp_path / "arrays"), registry.load("folder", tmp_path / "files")):
        assert Preprocess((24, 24))(data.domains[0].pictures.read([1, 0])).shape == (2, 3, 24, 24)


def test_verify_as_json(tmp_path):
    write_tree(tmp_path, ["summer", "winter"], ["bear", "wolf"])
    (tmp_path / "winter/bear/a.jpg").write_bytes(b"")
    result = run("verify", "folder", "--root", tmp_path, "--deep", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["ok"] is False
    assert told["domains"] == {"summer": 4, "winter": 4}
    assert told["classes"] == 2
    assert told["root"] == str(tmp_path)
    assert [(f["level"], f["where"]) for f in told["findings"]] == [
        ("error", str(tmp_path / "winter/bear/a.jpg"))
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pcas", "--root", "."], "did you mean 'pacs'"),
        (["pacs", "--root", ".", "--severity", "3"], "pacs has no option 'severity'"),
        (["pacs", "--root", ".", "--domain", "phot"], "did you mean 'photo'"),
    ],
)
def test_wrong_arguments(arguments, message):
    result = run("verify", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_list():
    result = run("list")
    assert result.exit_code == 0
    assert [
        line.split()[0] for line in result.output.splitlines() if line[0] != " "
    ] == registry.list_datasets()
    assert "https://zenodo.org/records/3555552" in result.output


def test_list_as_json():
    records = {record["name"]: record for record in json.loads(run("list", "--json").stdout)}
    assert list(records) == registry.list_datasets()
    assert records["domainnet"]["classes"] == 345
    assert records["domainnet"]["pictures"] == 586_575
    assert records["imagenetc5k"]["options"] == ["severity", "domains", "class_names", "image_list"]
    assert [name for name, record in records.items() if record["downloadable"]] == ["cifar10c", "cifar100c"]


def test_download_says_what_failed(tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    result = run("download", "cifar10c", "--root", tmp_path)
    assert result.exit_code == 1
    assert "is there already, but" in result.stderr
    assert run("download", "pacs", "--root", tmp_path).exit_code == 2


def test_download_of_what_is_there(tmp_path):
    write_cifar_c(tmp_path / "CIFAR-10-C")
    result = run("download", "cifar10c", "--root", tmp_path)
    assert result.exit_code == 0
    assert result.stdout.replace("\n", "") == f"cifar10c is in {tmp_path}/CIFAR-10-C"
