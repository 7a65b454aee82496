"""Making sets like CIFAR-C: layout, seed, processes, resumed runs, refused folders."""

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

from ramen.data import reading
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from ramen.data.make import ALL_CORRUPTIONS, make, make_cifar_c
from tests.fakes.layouts import write_clean_arrays

FAST = ["gaussian_noise", "contrast", "spatter"]
FAST = ["gaussian_noise", "contrast", "spatter"]
SCRIPT = """
import sys
from ramen.data.make import make
make.ARRAY_BLOCK = 50
if __name__ == "__main__":
    names = ["contrast", "elastic_transform"]
    make.make_cifar_c(sys.argv[1], sys.argv[2], corruptions=names, workers=2)
"""


@pytest.fixture
def source(tmp_path):
    return write_clean_arrays(tmp_path / "clean.npz")


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(make, "ARRAY_BLOCK", 10)


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_all_severities_have_the_released_layout(source, tmp_path, small_blocks):
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
        for severity in range(1, 6):  # severity 1 first; every block of ten has a generator of its own
            for start in (0, 10, 20):
                number = (*CORRUPTIONS, *EXTRA_CORRUPTIONS).index(name)
                rng = np.random.default_rng((0, number, severity, start))
                expected = corrupt(clean[start : start + 10], name, rng, severity)
                first = (severity - 1) * 25 + start
                assert np.array_equal(made[first : first + len(expected)], expected)
    assert seen[0] == (0, 375)
    assert seen[-1] == (375, 375)
    assert seen == sorted(seen)


def test_a_subset_of_severities_has_folders(source, tmp_path, small_blocks):
    out = make_cifar_c(source, tmp_path / "some", corruptions=FAST[:2], severities=[5, 2, 5], workers=1)
    assert sorted(p.name for p in out.iterdir()) == ["made.json", "severity_2", "severity_5"]
    whole = make_cifar_c(source, tmp_path / "all", corruptions=FAST[:2], workers=1)
    for severity in (2, 5):
        folder = out / f"severity_{severity}"
        assert np.load(folder / "labels.npy").tolist() == [n % 10 for n in range(25)]
        for name in FAST[:2]:
            rows = np.load(whole / f"{name}.npy")[(severity - 1) * 25 : severity * 25]
            assert np.array_equal(np.load(folder / f"{name}.npy"), rows)


def test_the_seed_matters_and_the_number_of_processes_does_not(source, tmp_path, small_blocks):
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


def test_the_record_says_how_the_set_was_made(source, tmp_path):
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


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_killed_run_is_resumed(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (2000, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "clean.npz", images=images, labels=np.zeros(2000, int))
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "out"
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "clean.npz"), str(out)],
        start_new_session=True,
    )
    parts = out / reading.UNFINISHED
    try:
        deadline = time.monotonic() + 60
        while not ((out / "contrast.npy").exists() and list(parts.glob("elastic_transform-1-*.npy"))):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
        run.wait()
        deadline = time.monotonic() + 60
        while _group_is_alive(run.pid):  # the workers exit with their parent
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert (out / "contrast.npy").exists()
    assert not (out / "elastic_transform.npy").exists()
    kept = {path: path.stat().st_mtime_ns for path in (out / "contrast.npy", out / "made.json")}
    finished = len(list(parts.glob("elastic_transform-*.npy")))
    assert 0 < finished < 200
    (parts / f"elastic_transform-1-{50 * 39}.npy").write_bytes(b"cut off by a power failure")

    monkeypatch.setattr(make, "ARRAY_BLOCK", 50)
    steps = []
    make_cifar_c(
        tmp_path / "clean.npz",
        out,
        corruptions=["contrast", "elastic_transform"],
        workers=1,
        progress=lambda done, total: steps.append(done),
    )
    assert steps[0] == 10_000  # contrast
    # one block fewer if the one that was overwritten above was among the finished ones
    assert steps[1] in (10_000 + 50 * finished, 10_000 + 50 * (finished - 1))
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
    with pytest.raises(ValueError, match="out"):
        make_cifar_c(source, tmp_path / "notes", corruptions=FAST, workers=1)
    out = make_cifar_c(source, tmp_path / "c", corruptions=["contrast"], workers=1)
    with pytest.raises(ValueError, match="seed"):
        make_cifar_c(source, out, corruptions=["contrast"], seed=1, workers=1)
    stored = np.load(source)
    np.savez(source, images=stored["images"], labels=(stored["labels"] + 1) % 10)
    with pytest.raises(ValueError, match="source"):
        make_cifar_c(source, out, corruptions=["contrast"], workers=1)
    np.savez(source, images=stored["images"], labels=np.arange(25) % 10)
    (out / "contrast.npy").write_bytes((out / "contrast.npy").read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"contrast\.npy"):
        make_cifar_c(source, out, corruptions=["contrast"], workers=1)
    (out / "made.json").write_text("{")
    with pytest.raises(ValueError, match=r"made\.json"):
        make_cifar_c(source, out, corruptions=["contrast"], workers=1)


def test_a_full_disk_is_reported_before_the_start(source, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10**5})
    monkeypatch.setattr(make.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="GB"):
        make_cifar_c(source, tmp_path / "c", corruptions=FAST, workers=1)


def test_a_worker_that_dies_is_reported():
    with pytest.raises(RuntimeError, match="a worker process died"):
        list(make.run_in_processes(os._exit, [3], 1))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "cifar20c"}, "name"),
        ({"corruptions": ["fogg"]}, "fogg"),
        ({"corruptions": []}, "corruptions"),
        ({"severities": [0]}, "severity"),
        ({"seed": -1}, "seed"),
        ({"workers": 0}, "workers"),
    ],
)
def test_bad_arguments(source, tmp_path, arguments, named):
    with pytest.raises(ValueError, match=named):
        make_cifar_c(**{"source": source, "out": tmp_path / "c"} | arguments)
    assert not (tmp_path / "c").exists()
