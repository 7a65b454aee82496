"""The script that trains the tiny CLIP: its parts against plain ones, and a run of a few steps."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F

from ramen.data.drawings import styles
from ramen.data.drawings.shapes import OBJECTS
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from training import tiny_clip as train

ROOT = Path(__file__).resolve().parents[2]
SMALL = train.Recipe(
    pictures=48, steps=4, batch=24, warmup=2, width=32, layers=1, embed_dim=16, text_width=32, text_layers=1
)
CPU = torch.device("cpu")


class PoolOfThisProcess:
    """Stands in for ``ProcessPoolExecutor``: draws here, one part after the other."""

    def __init__(self, workers):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    map = staticmethod(map)


@pytest.fixture(scope="module")
def caption_table():
    return train.CaptionTable(open_clip.SimpleTokenizer(context_length=24), CPU)


def test_the_recipe_decides_the_weights(tmp_path, capsys, monkeypatch, caption_table):
    monkeypatch.setattr(train, "ProcessPoolExecutor", PoolOfThisProcess)
    monkeypatch.setattr(train, "CaptionTable", lambda tokenizer, device: caption_table)
    first = train.save(train.train(SMALL, CPU), SMALL, tmp_path / "a")
    assert first == train.save(train.train(SMALL, CPU), SMALL, tmp_path / "b")
    shorter = train.Recipe(**{**vars(SMALL), "steps": 3})
    assert first != train.save(train.train(shorter, CPU), shorter, tmp_path / "c")
    assert "48 images drawn" in capsys.readouterr().out


def test_training_images_do_not_depend_on_the_number_of_workers(monkeypatch):
    monkeypatch.setattr(train, "_CHUNK", 10)
    one, objects, drawn_in = train.draw_training_set(SMALL, workers=1)
    two = train.draw_training_set(SMALL, workers=2)
    assert np.array_equal(one.pixels, two[0].pixels)
    assert objects.equal(two[1])
    assert drawn_in.equal(two[2])
    assert len(np.unique(one.pixels.reshape(48, -1), axis=0)) == 48


def test_matches_is_true_where_the_caption_is_true():
    style, dark = train.FIRST_STYLE + 2, train.FIRST_QUALITY + 2
    large = train.FIRST_SIZE + 1
    objects = torch.tensor([4, 4, 7])
    # a clean small line drawing, a dark large one in another style, and another object
    attributes = train._attributes(
        torch.tensor([2, 0, 2]), torch.tensor([0, 3, 0]), torch.tensor([0, 1, 1]) > 0
    )
    assert attributes[0].nonzero().flatten().tolist() == [0, style, train.FIRST_SIZE]
    assert attributes[1].nonzero().flatten().tolist() == [0, train.FIRST_STYLE, dark, large]
    additions = torch.tensor([style, 0, large])
    # caption 0: "a line drawing of 4"; caption 1: "a 4"; caption 2: "a large 7"
    assert train.matches(objects, attributes, additions).tolist() == [
        [True, True, False],
        [False, True, False],
        [False, False, True],
    ]


def test_contrastive_loss_against_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    images, texts = (F.normalize(torch.randn(5, 4, generator=generator).double(), dim=1) for _ in range(2))
    true = torch.eye(5, dtype=torch.bool)
    true[0, 3] = true[2, 1] = True
    total = 0.0
    for a, b, truth in ((images, texts, true), (texts, images, true.T)):
        for i in range(5):
            scores = [math.exp(7 * float(a[i] @ b[j])) for j in range(5)]
            mates = [j for j in range(5) if truth[i, j]]
            total -= sum(math.log(scores[j] / sum(scores)) for j in mates) / len(mates) / 10
    assert train.contrastive_loss(images, texts, true, torch.tensor(7.0)).item() == pytest.approx(total)


def test_spoilt_images_are_what_their_words_say():
    images = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    spoilt = train.spoil(images, torch.arange(6), torch.Generator().manual_seed(2))
    assert list(train.QUALITIES) == ["blurry", "noisy", "dark", "bright", "pale"]
    assert spoilt[0].equal(images[0])
    rough = [x.diff(dim=2).abs().mean() for x in (images[1], spoilt[1])]
    assert rough[1] < 0.8 * rough[0]
    assert 0.01 < (spoilt[2] - images[2]).std() < 0.06
    assert spoilt[3].mean() < 0.8 * images[3].mean()
    assert spoilt[4].mean() > images[4].mean() + 0.05
    assert spoilt[5].std() < 0.8 * images[5].std()
    assert spoilt.min() >= 0
    assert spoilt.max() <= 1


def test_shift_moves_by_whole_pixels_and_continues_the_edge():
    images = torch.arange(32.0).expand(1, 3, 32, 32)
    seen = set()
    for seed in range(40):
        moved = train.shift(images, torch.Generator().manual_seed(seed))
        step = int(moved[0, 0, 0, 16]) - 16
        seen.add(step)
        assert moved[0, 0, 0].tolist() == [min(max(x + step, 0), 31) for x in range(32)]
    assert seen == {-2, -1, 0, 1, 2}


def test_caption_table_draws_only_true_captions(caption_table):
    tokenizer = open_clip.SimpleTokenizer(context_length=24)
    objects = torch.full((60,), list(OBJECTS).index("cat"))
    additions = torch.full((60,), train.FIRST_QUALITY)
    generator = torch.Generator().manual_seed(0)
    drawn = {tuple(row) for row in caption_table.draw(objects, additions, generator).tolist()}
    possible = {tuple(row) for row in tokenizer(train.captions("cat", train.FIRST_QUALITY)).tolist()}
    assert drawn == possible


def test_schedule_warms_up_and_ends_at_nothing():
    recipe = train.Recipe(steps=100, warmup=10)
    rates = [train._cosine(recipe, step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1)
    assert rates[100] == pytest.approx(0, abs=1e-9)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_unseen_styles_are_not_drawn_for_training(monkeypatch):
    drawn = set()

    def note(objects, drawn_in, seed):
        drawn.update(drawn_in)
        return train.DrawnImages(
            np.zeros((len(objects), 32, 32, 3), np.uint8), np.zeros(len(objects), np.float32)
        )

    monkeypatch.setattr(train, "ProcessPoolExecutor", PoolOfThisProcess)
    monkeypatch.setattr(train, "draw_images", note)
    train.draw_training_set(train.Recipe(pictures=500))
    assert drawn == set(styles.TRAINED)


# -- the script ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="slow; RAMEN_SLOW_TESTS=1 runs them")
def test_a_few_steps_of_the_script(tmp_path):
    """Started as documented, from the root of the repository; it writes a model that open_clip loads."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in vars(SMALL).items()]
    done = subprocess.run(
        [sys.executable, "training/tiny_clip.py", "--out", str(tmp_path), "--device", "cpu", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert "sha256" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {train.MODEL_FILE, train.CONFIG_FILE, "recipe.json"}
    assert json.loads((tmp_path / "recipe.json").read_text()) == vars(SMALL)
    model = open_clip.create_model(f"local-dir:{tmp_path}")
    assert model.visual.output_dim == SMALL.embed_dim
