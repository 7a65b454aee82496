"""Corrupted sets that are made here: layout, seed, processes, stopped runs, refused folders."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ramen.cli import app
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from ramen.data.make import ALL_CORRUPTIONS, cifar_c, imagenet_c, make_cifar_c, make_imagenet_c, output

runner = CliRunner()
FAST = ["gaussian_noise", "contrast", "spatter"]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "clean.npz"
    images = np.random.default_rng(0).integers(0, 256, (25, 32, 32, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(25) % 10)
    return path


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(cifar_c, "PIECE", 10)
    monkeypatch.setattr(imagenet_c, "PIECE", 2)


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_all_severities_have_the_released_layout(source, tmp_path, small_pieces):
    seen = []
    out = make_cifar_c(
        source, tmp_path / "c", corruptions=FAST, workers=1, progress=lambda *step: seen.append(step)
    )
    assert sorted(p.name for p in out.iterdir()) == sorted(
        [*(f"{n}.npy" for n in FAST), "labels.npy", "made.json"]
    )
    labels = np.load(out / "labels.npy")
    assert labels.dtype == np.uint8
    assert labels.tolist() == 5 * [n % 10 for n in range(25)]
    clean = np.load(source)["images"]
    for name in FAST:
        made = np.load(out / f"{name}.npy", mmap_mode="r")
        assert made.shape == (125, 32, 32, 3)
        assert made.dtype == np.uint8
        for severity in range(1, 6):  # severity 1 first; every piece of ten from a generator of its own
            for start in (0, 10, 20):
                number = (*CORRUPTIONS, *EXTRA_CORRUPTIONS).index(name)
                rng = np.random.default_rng((0, number, severity, start))
                expected = corrupt(clean[start : start + 10], name, rng, severity)
                first = (severity - 1) * 25 + start
                assert np.array_equal(made[first : first + len(expected)], expected)
    assert seen[0] == (0, 375)
    assert seen[-1] == (375, 375)
    assert seen == sorted(seen)


def test_some_severities_have_folders(source, tmp_path, small_pieces):
    out = make_cifar_c(source, tmp_path / "some", corruptions=FAST[:2], severities=[5, 2, 5], workers=1)
    assert sorted(p.name for p in out.iterdir()) == ["made.json", "severity_2", "severity_5"]
    whole = make_cifar_c(source, tmp_path / "all", corruptions=FAST[:2], workers=1)
    for severity in (2, 5):
        folder = out / f"severity_{severity}"
        assert np.load(folder / "labels.npy").tolist() == [n % 10 for n in range(25)]
        for name in FAST[:2]:
            rows = np.load(whole / f"{name}.npy")[(severity - 1) * 25 : severity * 25]
            assert np.array_equal(np.load(folder / f"{name}.npy"), rows)


def test_seed_decides_and_the_number_of_processes_does_not(source, tmp_path, small_pieces):
    options = {"corruptions": ALL_CORRUPTIONS, "severities": [5]}
    one, two, other = (
        contents(make_cifar_c(source, tmp_path / str(n), seed=seed, workers=workers, **options))
        for n, (seed, workers) in enumerate([(0, 1), (0, 2), (1, 2)])
    )
    assert one == two
    assert len(one) == 21
    drawn = {n for n in ALL_CORRUPTIONS if one[f"severity_5/{n}.npy"] != other[f"severity_5/{n}.npy"]}
    still = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
    assert drawn == set(ALL_CORRUPTIONS) - still - {"gaussian_blur", "saturate"}


def test_the_record_tells_what_the_set_is_made_of(source, tmp_path):
    out = make_cifar_c(source, tmp_path / "c", "cifar100c", ["frost"], [3], seed=7, workers=1)
    record = json.loads((out / "made.json").read_text())
    assert record["set"] == "cifar100c"
    assert record["seed"] == 7
    assert record["parameters"]["frost"][2] == [0.9, 0.4, 5]
    assert record["source"]["images"] == [25, 32, 32, 3]
    assert record["source"]["sha256"] == hashlib.sha256(np.load(source)["images"].tobytes()).hexdigest()
    assert record["versions"].keys() == {"ramen", "numpy", "pillow"}
    assert "imagecorruptions" in record["frost"]
    make_cifar_c(source, out, "cifar100c", ["contrast"], [3], seed=7, workers=1)
    assert json.loads((out / "made.json").read_text()) == record


SCRIPT = """
import sys
from ramen.data.make import cifar_c
cifar_c.PIECE = 50
if __name__ == "__main__":
    names = ["contrast", "elastic_transform"]
    cifar_c.make_cifar_c(sys.argv[1], sys.argv[2], corruptions=names, workers=2)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_killed_run_is_continued(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (2000, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "clean.npz", images=images, labels=np.zeros(2000, int))
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "out"
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "clean.npz"), str(out)],
        start_new_session=True,
    )
    parts = out / output.UNFINISHED
    try:
        deadline = time.monotonic() + 60
        while not ((out / "contrast.npy").exists() and list(parts.glob("elastic_transform-1-*.npy"))):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
        run.wait()
        deadline = time.monotonic() + 60
        while _group_is_alive(run.pid):  # the workers end with their parent
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert (out / "contrast.npy").exists()
    assert not (out / "elastic_transform.npy").exists()
    kept = {path: path.stat().st_mtime_ns for path in (out / "contrast.npy", out / "made.json")}
    begun = len(list(parts.glob("elastic_transform-*.npy")))
    assert 0 < begun < 200
    (parts / f"elastic_transform-1-{50 * 39}.npy").write_bytes(b"cut off by a power failure")

    monkeypatch.setattr(cifar_c, "PIECE", 50)
    steps = []
    make_cifar_c(
        tmp_path / "clean.npz",
        out,
        corruptions=["contrast", "elastic_transform"],
        workers=1,
        progress=lambda done, total: steps.append(done),
    )
    assert steps[0] == 10_000  # contrast
    assert steps[1] in (10_000 + 50 * begun, 10_000 + 50 * (begun - 1))  # unless the last was overwritten
    assert steps[-1] == 20_000
    assert kept[out / "contrast.npy"] == (out / "contrast.npy").stat().st_mtime_ns
    assert not parts.exists()
    fresh = make_cifar_c(
        tmp_path / "clean.npz", tmp_path / "fresh", corruptions=["contrast", "elastic_transform"], workers=2
    )
    assert contents(out) == contents(fresh)


def _group_is_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_folder_with_something_else_is_refused(source, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "fog.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"out: .*notes must be new, empty, or begun by an earlier run"):
        make_cifar_c(source, tmp_path / "notes", corruptions=FAST, workers=1)

    out = make_cifar_c(source, tmp_path / "c", corruptions=["contrast"], workers=1)
    with pytest.raises(ValueError, match=r"out: .* holds a set made with seed 0, now it is 1: delete"):
        make_cifar_c(source, out, corruptions=["contrast"], seed=1, workers=1)
    stored = np.load(source)
    np.savez(source, images=stored["images"], labels=(stored["labels"] + 1) % 10)
    with pytest.raises(ValueError, match="holds a set made with source"):
        make_cifar_c(source, out, corruptions=["contrast"], workers=1)
    np.savez(source, images=stored["images"], labels=np.arange(25) % 10)
    (out / "contrast.npy").write_bytes((out / "contrast.npy").read_bytes()[:1000])
    with pytest.raises(
        ValueError, match=r"contrast.npy is not the array of shape \(125, 32, 32, 3\).*delete it"
    ):
        make_cifar_c(source, out, corruptions=["contrast"], workers=1)
    (out / "made.json").write_text("{")
    with pytest.raises(ValueError, match=r"made.json cannot be read"):
        make_cifar_c(source, out, corruptions=["contrast"], workers=1)


def test_a_full_disk_is_told_beforehand(source, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10**5})
    monkeypatch.setattr(output.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"needs 0.0 GB, but only 0.0 GB are free"):
        make_cifar_c(source, tmp_path / "c", corruptions=FAST, workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar20c"}, "name must be one of"),
        ({"corruptions": ["fogg"]}, "corruption 'fogg' is unknown; did you mean 'fog'"),
        ({"corruptions": []}, "must name at least one each"),
        ({"severities": [0]}, "severity must be between 1 and 5, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
    ],
)
def test_bad_arguments(source, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_cifar_c(**{"source": source, "out": tmp_path / "c"} | arguments)
    assert not (tmp_path / "c").exists()


def test_worker_that_dies_is_told():
    with pytest.raises(RuntimeError, match=r"a worker process ended .* run the same again to continue"):
        list(output.in_processes(os._exit, [3], 1))


def write_folder(root, count=3):
    rng = np.random.default_rng(0)
    for number in range(count):
        for name, size in (("n01", (300, 260)), ("n02", (90, 200))):
            small = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            path = root / name / f"val_{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(small).resize(size).save(path)


def test_imagenet_layout(tmp_path, small_pieces):
    write_folder(tmp_path / "val")
    names = ["contrast", "jpeg_compression"]
    out = make_imagenet_c(tmp_path / "val", tmp_path / "c", names, [1, 5], workers=1)
    files = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file() and p.name != "made.json")
    assert files == sorted(
        f"{corruption}/{severity}/{name}/val_{number}.JPEG"
        for corruption in names
        for severity in (1, 5)
        for name in ("n01", "n02")
        for number in range(3)
    )
    # by hand: short side to 256, middle 224
    with Image.open(tmp_path / "val" / "n02" / "val_1.png") as image:
        resized = image.resize((256, 568), Image.Resampling.BILINEAR)
    clean = np.asarray(resized.crop((16, 172, 240, 396)))
    plain = corrupt(clean[None], "contrast", np.random.default_rng(0), 5, "imagenet")[0]
    with Image.open(out / "contrast" / "5" / "n02" / "val_1.JPEG") as made:
        assert made.size == (224, 224)
        assert made.format == "JPEG"
        assert np.abs(np.asarray(made).astype(int) - plain).mean() < 1
        Image.fromarray(plain).save(tmp_path / "plain.jpg", quality=85)
        with Image.open(tmp_path / "plain.jpg") as same_quality:
            assert made.quantization == same_quality.quantization
    assert json.loads((out / "made.json").read_text())["recipe"] == "imagenet"


def test_imagenet_processes_seed_and_continuation(tmp_path, small_pieces):
    write_folder(tmp_path / "val")
    options = {"corruptions": ["gaussian_noise", "spatter"], "severities": [1, 3]}
    one = make_imagenet_c(tmp_path / "val", tmp_path / "1", workers=1, **options)
    two = make_imagenet_c(tmp_path / "val", tmp_path / "2", workers=2, **options)
    assert contents(one) == contents(two)
    other = make_imagenet_c(tmp_path / "val", tmp_path / "3", workers=1, seed=5, **options)
    assert not set(contents(one).values()) & set(contents(other).values())
    # a stopped run: some files are missing, the others stay
    whole = contents(two)
    kept = two / "spatter" / "1" / "n01" / "val_0.JPEG"
    before = kept.stat().st_mtime_ns
    (two / "spatter" / "3" / "n02" / "val_2.JPEG").unlink()
    seen = []
    make_imagenet_c(tmp_path / "val", two, workers=1, progress=lambda *s: seen.append(s), **options)
    assert contents(two) == whole
    assert kept.stat().st_mtime_ns == before
    assert seen[-1] == (24, 24)


def test_imagenet_sources_that_will_not_do(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*val"):
        make_imagenet_c(tmp_path / "val", tmp_path / "c", workers=1)
    write_folder(tmp_path / "val", 1)
    with pytest.raises(ValueError, match="lies in the source"):
        make_imagenet_c(tmp_path / "val", tmp_path / "val" / "c", workers=1)
    damaged = tmp_path / "val" / "n01" / "val_0.png"
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"n01.val_0.png cannot be read as an image"):
        make_imagenet_c(tmp_path / "val", tmp_path / "c", ["contrast"], [1], workers=1)
    damaged.write_bytes(content)
    damaged.with_suffix(".jpg").write_bytes(content)
    with pytest.raises(ValueError, match=r"val_0.jpg and .*val_0.png would both become n01/val_0.JPEG"):
        make_imagenet_c(tmp_path / "val", tmp_path / "d", ["contrast"], [1], workers=1)


def test_command(source, tmp_path):
    out = tmp_path / "c"
    arguments = ["data", "make", "cifar10c", "--from", str(source), "--out", str(out), "--workers", "1"]
    chosen = ["--severity", "5", "--severity", "4", "--corruption", "contrast", "--corruption", "frost"]
    result = runner.invoke(app, [*arguments, *chosen, "--seed", "3"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert "frost: " in result.stderr
    assert json.loads((out / "made.json").read_text())["seed"] == 3
    for severity in (4, 5):
        names = sorted(p.name for p in (out / f"severity_{severity}").iterdir())
        assert names == ["contrast.npy", "frost.npy", "labels.npy"]


def test_command_for_folders(tmp_path):
    write_folder(tmp_path / "val", 1)
    out = tmp_path / "c"
    arguments = ["data", "make", "imagenetc", "--from", str(tmp_path / "val"), "--out", str(out)]
    result = runner.invoke(app, [*arguments, "--severity", "2", "--corruption", "contrast", "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert (out / "contrast" / "2" / "n02" / "val_0.JPEG").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar10", "--from", "SOURCE"], "NAME must be one of"),
        (["cifar10c", "--from", "nowhere.npz"], "there is nothing at"),
        (["cifar10c", "--from", "SOURCE", "--corruption", "fogg"], "did you mean 'fog'"),
        (["cifar10c", "--from", "SOURCE", "--severity", "6"], "severity"),
    ],
)
def test_command_tells_what_is_wrong(source, tmp_path, arguments, message):
    arguments = [str(source) if a == "SOURCE" else a for a in arguments]
    result = runner.invoke(app, ["data", "make", *arguments, "--out", str(tmp_path / "c")])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
