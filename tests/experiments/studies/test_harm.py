"""The study of harm: gains are those of the answers, with a fresh method for each stream."""

from typing import ClassVar

import pytest
import torch

from ramen.data.registry import load
from ramen.experiments.run.results import read_result, write_result
from ramen.experiments.studies import harm
from ramen.experiments.studies.harm import StudiedMethod, harm_study, ramen_variants
from ramen.methods._registry import create
from ramen.models.tiny_clip.model import load_tiny

ZERO_SHOT = StudiedMethod("zero-shot", "ensemble")


@pytest.fixture(scope="module")
def data():
    return load("tiny", domains=["fog", "neon", "clean"], pictures=30)


@pytest.fixture(scope="module")
def classifier(data):
    return load_tiny(data.classes)


class WrongOnceWarm:
    """Answers as zero-shot does for its first images, and then always the next class."""

    parameters: ClassVar = {}

    def __init__(self, classifier, after):
        self.real, self.classes, self.after = create("ensemble", classifier), classifier.num_classes, after
        self.seen = []  # how many images it had seen before each batch

    def reset(self):
        self.real.reset()

    def predict(self, images):
        self.seen.append((self.real.images_seen, len(images)))
        late = self.real.images_seen >= self.after
        prediction = self.real.predict(images)
        logits = prediction.logits.roll(1, dims=1) if late else prediction.logits
        return type(prediction)(logits, prediction.zero_shot_logits, prediction.fallback, None)


def test_harm_is_found_where_it_is(data, classifier, tmp_path, monkeypatch):
    made = []

    def create_fake(name, classifier, **parameters):
        made.append(WrongOnceWarm(classifier, after=20))
        return made[-1]

    monkeypatch.setattr(harm, "create", create_fake)
    result = harm_study(classifier, data, [ZERO_SHOT], seeds=(0, 1), images=20, batch=10)
    write_result(tmp_path / "study.json", result)
    assert read_result(tmp_path / "study.json") == result
    rows = result["data"]["rows"]
    fresh = ("first 10 images", "first image", "sorted by class")
    for title in (*fresh, "clean images", "one class for ever"):  # not more than 20 images each
        gain = rows[title]["methods"]["zero-shot"]
        assert (gain["points"], gain["margin"], gain["broken"], gain["seeds"]) == (0, 0, 0, [0, 0])
    mixed = rows["mixed domains"]
    gain = mixed["methods"]["zero-shot"]
    assert mixed["images"] == 80
    assert gain["broken"] > 20 > gain["repaired"]
    assert gain["points"] == pytest.approx(100 * (gain["repaired"] - gain["broken"]) / 80)
    assert gain["points"] == pytest.approx(sum(gain["seeds"]) / 2)
    assert 5 < gain["margin"] < 15
    table, worst = result["tables"]
    cells = {row[0]: row[2] for row in table["rows"]}
    assert cells["mixed domains"] == f"{gain['points']:+.2f} ± {gain['margin']:.2f} !"
    assert cells["clean images"] == "+0.00"
    lowest = {row[0]: row[2] for row in worst["rows"]}
    assert lowest["mixed domains"] == f"{min(gain['seeds']):+.2f} !"
    assert "first 1,000 images (too few images)" in table["note"]
    tried, mixed_run, tens = made[0], made[1], made[2]
    assert not tried.seen
    assert mixed_run.seen == [(0, 10), (10, 10), (20, 10), (30, 10)]
    assert tens.seen == [(0, 10), (0, 10)]


def test_answers_are_those_of_the_method(data, classifier):
    """Ramen on the mixed stream, by hand."""
    chosen = {"topk": 2, "lr": 0.03, "beta": 0.0}
    result = harm_study(
        classifier, data, [ZERO_SHOT, StudiedMethod("far", "ramen", chosen)], seeds=[3], images=20, batch=15
    )
    (stream, *_) = harm.HarmImages.of(data, None).streams(20, 3)
    method = create("ramen", classifier, seed=3, **chosen)
    labels = torch.from_numpy(stream.real.labels())
    right = before = 0
    for part in stream.real.batches(15):
        out = method.predict(classifier.preprocess(stream.real.read(part)))
        right += int((out.labels == labels[part]).sum())
        before += int((out.zero_shot_logits.argmax(1) == labels[part]).sum())
    row = result["data"]["rows"]["mixed domains"]
    assert row["zero_shot"] == [pytest.approx(100 * before / 40)]
    assert row["methods"]["far"]["points"] == pytest.approx(100 * (right - before) / 40)
    assert row["methods"]["zero-shot"]["points"] == 0
    about = result["data"]["methods"]["far"]
    assert (about["method"], about["parameters"]) == ("ramen", chosen)
    assert (about["runs_with"]["topk"], about["runs_with"]["capacity"]) == (2, 3125)


def test_variants_of_ramen():
    papers, without_guard, chosen = ramen_variants(10)
    assert papers.parameters == {"capacity": 7500, "topk": 50, "beta": 5.0, "lr": 0.01}
    assert without_guard.parameters == {"guard": 0.0}
    assert chosen.parameters == {}
    many = ramen_variants(100_000)[0].parameters
    assert (many["capacity"], many["topk"]) == (1, 1)


def test_memories_as_large_as_a_batch(data, classifier):
    note = StudiedMethod("note", "note")
    result = harm_study(classifier, data, [note], seeds=[0], images=2, batch=7)
    assert result["data"]["methods"]["note"]["parameters"] == {"memory": 7}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"methods": [StudiedMethod("x", "rammen")]}, "rammen"),
        ({"methods": [ZERO_SHOT, ZERO_SHOT]}, "methods must be at least one, each with a title of its own"),
        ({"methods": []}, "methods must be at least one"),
        ({"seeds": (1, 1)}, r"seeds must be at least one, each once, got \[1, 1\]"),
        ({"images": 0}, "images must be at least 1"),
        ({"clean": "cleen"}, "clean: no domain is called 'cleen'; did you mean 'clean'"),
    ],
)
def test_bad_input(data, classifier, given, message):
    with pytest.raises(ValueError, match=message):
        harm_study(classifier, data, **given)


def test_other_classes(data):
    with pytest.raises(ValueError, match="classifier must have the 24 classes of tiny, got 2"):
        harm_study(load_tiny(["cat", "house"]), data)


@pytest.mark.gpu
def test_on_a_gpu(data):
    classifier = load_tiny(data.classes, device="cuda")
    result = harm_study(classifier, data, seeds=[0], images=20, batch=10)
    assert result["data"]["device"].startswith("cuda")
    assert len(result["data"]["rows"]) == 8
