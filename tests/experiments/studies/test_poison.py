"""The study of poisoned streams: what counts is the accuracy on the others' images."""

from types import SimpleNamespace

import pytest
import torch

from ramen.data.registry import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.run.results import read_result, write_result
from ramen.experiments.studies import poison
from ramen.experiments.studies.attacks import ATTACKS, Budget
from ramen.experiments.studies.poison import PoisonedMethod, method_rows, poison_study, ramen_rows
from ramen.experiments.studies.poison_defences import ATTACKER, DEFENCES, EvidenceRamen, QuotaRamen
from ramen.methods._registry import create
from ramen.methods.ramen import Ramen
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.tiny_clip.model import load_tiny

FAST = Budget(steps=1)


@pytest.fixture(scope="module")
def data():
    return load("tiny", domains=["fog", "neon"], pictures=20)


@pytest.fixture(scope="module")
def classifier(data):
    return load_tiny(data.classes)


def test_a_method_that_ignores_the_stream_loses_nothing(data, classifier, tmp_path):
    rows = [PoisonedMethod("ensemble", "ensemble")]
    result = poison_study(
        classifier, [make_stream("mixed", data)], rows, attacker_images=8, budget=FAST, batch=16
    )
    write_result(tmp_path / "study.json", result)
    assert read_result(tmp_path / "study.json") == result
    found = result["data"]["methods"]["ensemble"]
    assert found["clean"] == found["zero_shot"]
    assert list(found["poisoned"]) == list(ATTACKS)
    for shares in found["poisoned"].values():
        assert shares == dict.fromkeys(("0.1", "0.2", "0.5"), found["clean"])
    assert result["data"]["images"] == 32  # of 40, as the attacker has eight
    assert 0 < found["clean"][0] <= 100


def test_only_benign_answers_count(data, classifier, monkeypatch):
    """A method that is right as long as it has seen no image of the attacker, and then always wrong."""
    stream, attacker = make_stream("mixed", data), make_stream("mixed", data, seed=1)
    black = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    monkeypatch.setitem(ATTACKS, "noise", lambda *given: black)
    truth, dark = torch.from_numpy(stream.labels()), classifier.preprocess(black)[0]

    class Fragile:
        seen, spoiled = 0, False

        def predict(self, images):
            benign = (images != dark).flatten(1).any(1)
            self.spoiled |= not bool(benign.all())
            labels = torch.full((len(images),), -1)
            if not self.spoiled:
                labels[benign] = truth[self.seen : self.seen + int(benign.sum())]
            self.seen += int(benign.sum())
            return SimpleNamespace(labels=labels)

    monkeypatch.setattr(poison, "create", lambda *given, **named: Fragile())
    found = poison_study(
        classifier,
        [stream],
        [PoisonedMethod("fragile", "tent")],
        attackers=[attacker],
        attacks=["noise"],
        shares=[0.02, 0.5],
        batch=4,
    )["data"]["methods"]["fragile"]
    assert found["clean"] == [100]
    few, many = (found["poisoned"]["noise"][share][0] for share in ("0.02", "0.5"))
    assert 0 < few < 100
    assert many < few


def test_seeds_and_parameters_of_rows(data, classifier, monkeypatch):
    created = []

    def recorded(name, *given, **parameters):
        created.append((name, parameters))
        return create(name, *given, **parameters)

    monkeypatch.setattr(poison, "create", recorded)
    streams = [make_stream("mixed", data, seed=seed) for seed in (5, 6)]
    rows = [PoisonedMethod("one", "ensemble"), PoisonedMethod("two", "tda", {"positive_alpha": 0.5}, seeds=2)]
    found = poison_study(
        classifier,
        streams,
        rows,
        attackers=streams,
        attacks=["flood"],
        shares=[0.5],
        images=10,
        attacker_images=4,
    )
    assert found["data"]["seeds"] == [5, 6]
    counts = {name: len(entry["clean"]) for name, entry in found["data"]["methods"].items()}
    assert counts == {"one": 1, "two": 2}
    runs = [(name, given) for name, given in created if "seed" in given]
    assert runs == [
        *[("ensemble", {"seed": 5})] * 2,
        *[("tda", {"seed": seed, "positive_alpha": 0.5}) for seed in (5, 5, 6, 6)],
    ]
    assert found["data"]["methods"]["two"]["parameters"] == {"positive_alpha": 0.5}


def test_rows_of_ramen(classifier):
    rows = {row.label: row.parameters for row in ramen_rows(24)}
    assert rows == {
        "ramen, paper's values": {"capacity": 3125, "topk": 21, "beta": 5.0, "lr": 0.01},
        "ramen, no guard": {"guard": 0.0},
        "ramen": {},
    }
    unguarded, chosen = (create("ramen", classifier, **rows[name]) for name in ("ramen, no guard", "ramen"))
    assert unguarded.guard == 0 < chosen.guard
    assert (unguarded.lr, unguarded.topk) == (chosen.lr, chosen.topk)
    assert ramen_rows(1000)[0].parameters["topk"] == 1
    assert ramen_rows(100_000)[0].parameters["topk"] == ramen_rows(100_000)[0].parameters["capacity"] == 1
    assert ramen_rows(24, {"capacity": 6})[0].parameters["topk"] == 6
    named = method_rows(24, {"tent": {"lr": 1.0}, "ramen": {"topk": 2}}, seeds=4, baseline_seeds=2)
    assert [(row.label, row.seeds, row.parameters.get("topk")) for row in named] == [
        ("tent", 2, None),
        *((label, 4, 2) for label in rows),
    ]


def test_rows_of_defences(classifier):
    rows = method_rows(24, {"tent": {}, "ramen": {"topk": 2}}, seeds=2, defences=True)
    assert [row.label for row in rows[-2:]] == ["ramen, quota per source", "ramen, evidence-scaled steps"]
    assert {(row.seeds, row.parameters["topk"]) for row in rows[-2:]} == {(2, 2)}
    assert [type(row.create(classifier, 0)) for row in rows[-3:]] == [Ramen, QuotaRamen, EvidenceRamen]


def test_a_quota_keeps_the_attacker_out_of_the_memory(data, classifier, monkeypatch):
    """Half of the stream is his, and a tenth of what is learned may be."""
    stored = {}

    class Watched(QuotaRamen):
        def step(self, first, usable):
            step = super().step(first, usable)
            numbers = range(self.memory.seen - len(usable), self.memory.seen)
            stored.update(zip(numbers, self.sources.tolist(), strict=True))
            return step

        def predict(self, images, **given):
            prediction = super().predict(images, return_support=True, **given)
            used = prediction.support.numbers[prediction.support.valid]
            shares.append(sum(stored[int(n)] == ATTACKER for n in used.unique()))
            return prediction

    shares = []
    monkeypatch.setitem(DEFENCES, "quota per source", Watched)
    row = PoisonedMethod("ramen", "ramen", {"capacity": 40, "topk": 40}, 1, "quota per source")
    poison_study(
        classifier,
        [make_stream("mixed", data)],
        [row],
        attacks=["noise"],
        shares=[0.5],
        attacker_images=8,
        budget=FAST,
        batch=8,
    )
    assert sum(source == ATTACKER for source in stored.values()) == 32  # what he sends
    assert 0 < max(shares) <= 10  # what is there to be retrieved of it: a tenth of the last 100


def test_a_method_that_cannot_run_is_listed(data, classifier):
    mute = ZeroShotClassifier(
        classifier.encoder, classifier.class_embeddings, 30.0, preprocess=classifier.preprocess
    )
    rows = [PoisonedMethod("clipartt", "clipartt"), PoisonedMethod("ensemble", "ensemble")]
    result = poison_study(
        mute,
        [make_stream("mixed", data)],
        rows,
        attacks=["noise"],
        shares=[0.5],
        images=10,
        attacker_images=4,
    )
    assert "text" in result["data"]["methods"]["clipartt"]["reason"]
    assert "clipartt cannot run on this model: " in result["tables"][0]["note"]
    assert set(result["tables"][0]["rows"][0][1:]) == {"-"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attacks": ["fire"]}, "attacks must be one of 'entropy', 'target', 'flood', 'noise', got 'fire'"),
        ({"shares": [1.5]}, "share must be below 1, got 1.5"),
        ({"attackers": []}, "streams must be one per stream of attackers, 0, got 1"),
        ({"images": 0}, "images must be at least 1"),
        ({"attacker_images": 40}, "must leave some of the stream's 40 to others, got 40"),
    ],
)
def test_bad_input(data, classifier, given, message):
    with pytest.raises(ValueError, match=message):
        poison_study(classifier, [make_stream("mixed", data)], [], **given)
