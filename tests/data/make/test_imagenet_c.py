"""Making sets like ImageNet-C: layout, seed, processes, resumed runs, unusable sources."""

import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from ramen.data.corruptions import corrupt
from ramen.data.make import make, make_imagenet_c
from tests.fakes.layouts import write_photos


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(make, "TREE_BLOCK", 2)


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_layout(tmp_path, small_blocks):
    write_photos(tmp_path / "val")
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
    # by hand: shorter side to 256, center crop of 224
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


def test_processes_seed_and_resuming(tmp_path, small_blocks):
    write_photos(tmp_path / "val")
    options = {"corruptions": ["gaussian_noise", "spatter"], "severities": [1, 3]}
    one = make_imagenet_c(tmp_path / "val", tmp_path / "1", workers=1, **options)
    two = make_imagenet_c(tmp_path / "val", tmp_path / "2", workers=2, **options)
    assert contents(one) == contents(two)
    other = make_imagenet_c(tmp_path / "val", tmp_path / "3", workers=1, seed=5, **options)
    assert not set(contents(one).values()) & set(contents(other).values())
    # an interrupted run: some files are missing, the others stay
    whole = contents(two)
    kept = two / "spatter" / "1" / "n01" / "val_0.JPEG"
    before = kept.stat().st_mtime_ns
    (two / "spatter" / "3" / "n02" / "val_2.JPEG").unlink()
    seen = []
    make_imagenet_c(tmp_path / "val", two, workers=1, progress=lambda *s: seen.append(s), **options)
    assert contents(two) == whole
    assert kept.stat().st_mtime_ns == before
    assert seen[-1] == (24, 24)


def test_unusable_sources(tmp_path):
    with pytest.raises(FileNotFoundError, match="val"):
        make_imagenet_c(tmp_path / "val", tmp_path / "c", workers=1)
    write_photos(tmp_path / "val", 1)
    with pytest.raises(ValueError, match="out"):
        make_imagenet_c(tmp_path / "val", tmp_path / "val" / "c", workers=1)
    damaged = tmp_path / "val" / "n01" / "val_0.png"
    content = damaged.read_bytes()
    for bad in (content[: len(content) // 2], content):
        damaged.write_bytes(bad)
        if bad == content:
            damaged.with_suffix(".jpg").write_bytes(content)  # both would get one name
        with pytest.raises(ValueError, match=r"val_0\.png"):
            make_imagenet_c(tmp_path / "val", tmp_path / f"c{len(bad)}", ["contrast"], [1], workers=1)
