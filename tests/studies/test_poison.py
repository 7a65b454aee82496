"""The study of poisoned streams: attacks keep to their bound, and only answers to the others count."""

import json
from types import SimpleNamespace

import numpy as np
import poison
import pytest
import torch
from poison import ATTACKER, ATTACKS, PoisonedMethod, PoisonedScene, QuotaRamen, SourceQuota, poison_study

import ramen
from ramen.data.streams.stream import make_stream
from ramen.methods._losses import entropy
from ramen.methods.ramen import Ramen
from ramen.models.classifier import ZeroShotClassifier
from ramen.testing import small_classifier


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(poison, "STEPS", 3)


@pytest.fixture(scope="module")
def own(data, classifier):
    stream = make_stream("mixed", data)
    return classifier.preprocess.pixels(stream.read(slice(0, 16)), device="cpu")


def scene(classifier, data, own=8, images=500, attacker=None):
    return PoisonedScene.of(classifier, make_stream("mixed", data), attacker, images, own, poison.EPS)


# -- attacks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["entropy", "target"])
@pytest.mark.parametrize("eps", [8 / 255, 0.01])
def test_changes_stay_within_the_bound(classifier, own, name, eps):
    own = own.clone()
    own[0], own[1] = 0, 255  # where the range of pixels is the tighter bound
    sent = ATTACKS[name](classifier, own, 0, eps)
    assert sent.dtype == torch.uint8
    apart = (sent.int() - own.int()).abs()
    assert apart.max() <= 255 * eps + 1e-6
    assert apart.float().mean() > 0.3 * 255 * eps
    assert sent[0].max() <= 255 * eps + 1e-6
    assert sent[1].min() >= 255 - 255 * eps - 1e-6


def test_attacks_do_what_they_are_meant_to(classifier, own, monkeypatch):
    monkeypatch.setattr(poison, "STEPS", 20)
    before = poison.zero_shot_logits(classifier, own)
    unsure = poison.zero_shot_logits(classifier, poison.highest_entropy(classifier, own, 0))
    assert (entropy(unsure) > entropy(before)).all()
    assert entropy(unsure).mean() > entropy(before).mean() + 1
    target = poison.target_class(classifier, 3)
    after = poison.zero_shot_logits(classifier, poison.one_target(classifier, own, 3)).softmax(1)[:, target]
    assert after.mean() > before.softmax(1)[:, target].mean() + 0.5
    flood = poison.flooding(classifier, own, 0)
    assert {image.numpy().tobytes() for image in flood} <= {image.numpy().tobytes() for image in own}
    assert poison.zero_shot_logits(classifier, flood).argmax(1).unique() == before.argmax(1).mode().values
    drawn = poison.noise(classifier, own, 0).float()
    assert drawn.mean() == pytest.approx(127.5, abs=1)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_seed_decides(classifier, own, name):
    first, again, other = (ATTACKS[name](classifier, own[:8], seed, poison.EPS) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    if name in ("noise", "target"):
        assert not torch.equal(first, other)


# -- streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["mixed", "single"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_benign_images_keep_their_order_and_resets(data, protocol, share):
    classifier, stream = small_classifier(), make_stream(protocol, data)
    sent = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 32, 32)
    expected = classifier.preprocess(stream.read(slice(0, len(stream))))
    places = poison.attacker_places(len(stream), share, seed=0)
    batches = list(poison.poisoned_batches(classifier, stream, sent, places, 7))
    assert torch.equal(torch.cat([part.images[part.benign] for part in batches]), expected)
    his = torch.cat([part.images[~part.benign] for part in batches])
    assert torch.equal(his, classifier.preprocess(sent)[[number % 4 for number in range(len(his))]])
    assert torch.equal(torch.cat([~part.benign for part in batches]), torch.from_numpy(places))
    before = np.cumsum([0, *(int(part.benign.sum()) for part in batches)])
    assert tuple(before[n] for n, part in enumerate(batches) if part.reset) == stream.resets


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.1, 11), (0.2, 25), (0.5, 100)])
def test_share_of_the_whole_stream(share, count):
    places = poison.attacker_places(100, share, seed=0)
    assert (len(places), places.sum()) == (100 + count, count)
    if count:
        assert not np.array_equal(places, poison.attacker_places(100, share, seed=1))
        assert abs(np.flatnonzero(places).mean() / len(places) - 0.5) < 0.2  # all over the stream


def test_held_out_images_are_nobody_elses(data):
    """Image 3 of one domain may be the photo of image 3 of the other: both are on one side."""
    stream = make_stream("mixed", data)
    benign, attacker = poison.hold_out(stream, 7)
    assert len(attacker) == 9  # whole numbers, of which each is in all three domains
    assert not set(benign.index) & set(attacker.index)
    kept = ~np.isin(stream.index, attacker.index)
    assert np.array_equal(benign.index, stream.index[kept])
    assert np.array_equal(benign.domain, stream.domain[kept])


# -- defences ---------------------------------------------------------------------------------------


def test_nobody_has_more_than_the_share_of_the_window():
    quota, admitted = SourceQuota(share=0.25, window=8), []
    for source in [0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0, 5, 5, 5] * 4:
        if quota.admits(source):
            admitted.append(source)
        lately = admitted[-8:]
        assert all(lately.count(one) <= 2 for one in set(lately))
    assert admitted[:3] == [0, 0, 1]


def test_what_is_above_the_quota_is_answered_zero_shot_and_not_stored():
    method = QuotaRamen(small_classifier(), capacity=8, topk=2)
    images = torch.randn(13, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    method.sources = torch.zeros(13, dtype=torch.int64)
    out = method.predict(images)
    assert out.fallback.tolist() == [False] * 10 + [True] * 3  # a tenth of 100 is ten
    assert torch.equal(out.logits[10:], out.zero_shot_logits[10:])
    method.reset()
    assert method.predict(images).fallback.sum() == 3  # who has sent what is forgotten, too


def test_steps_grow_with_what_is_stored():
    """The answer that a quarter of the step gives, with two of eight places filled."""
    classifier = small_classifier()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    parameters = {"capacity": 4, "topk": 2, "beta": 0.0, "guard": 0.0}
    scaled = poison.EvidenceRamen(classifier, lr=1e-2, **parameters).predict(images).logits
    share = 2 / (2 * classifier.num_classes)
    expected = Ramen(classifier, lr=1e-2 * share, **parameters).predict(images).logits
    torch.testing.assert_close(scaled, expected, rtol=1e-4, atol=1e-5)


# -- the study --------------------------------------------------------------------------------------


def test_a_method_that_ignores_the_stream_loses_nothing(data, classifier):
    result = poison_study(classifier, [scene(classifier, data)], [PoisonedMethod("e", "ensemble")], batch=16)
    found = result["methods"]["e"]
    assert found["clean"] == found["zero_shot"]
    assert list(found["poisoned"]) == list(ATTACKS)
    for shares in found["poisoned"].values():
        assert shares == dict.fromkeys(("0.1", "0.2", "0.5"), found["clean"])
    assert result["images"] == 81  # of 90, as the attacker has nine


def test_only_benign_answers_count(data, classifier, monkeypatch):
    """A method that is right as long as it has seen no image of the attacker, and then always wrong."""
    stream = make_stream("mixed", data)
    black = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    monkeypatch.setitem(ATTACKS, "noise", lambda *given: black)
    truth, dark = torch.from_numpy(stream.labels()), classifier.preprocess(black)[0]

    class Fragile(PoisonedMethod):
        def create(self, classifier, seed):
            return Answers()

    class Answers:
        seen, spoiled = 0, False

        def predict(self, images):
            benign = (images != dark).flatten(1).any(1)
            self.spoiled |= not bool(benign.all())
            labels = torch.full((len(images),), -1)
            if not self.spoiled:
                labels[benign] = truth[self.seen : self.seen + int(benign.sum())]
            self.seen += int(benign.sum())
            return SimpleNamespace(labels=labels)

    one = scene(classifier, data, attacker=make_stream("mixed", data, seed=1))
    result = poison_study(
        classifier, [one], [Fragile("f", "tent")], attacks=["noise"], shares=[0.02, 0.5], batch=4
    )
    found = result["methods"]["f"]
    assert found["clean"] == [100]
    few, many = (found["poisoned"]["noise"][share][0] for share in ("0.02", "0.5"))
    assert many < few < 100
    assert few > 0


def test_rows_of_ramen(classifier):
    rows = {row.label: row.parameters for row in poison.ramen_rows(24, {}, 3)}
    assert rows == {
        "ramen, paper's values": ramen.paper_values(24),
        "ramen, no guard": {"guard": 0.0},
        "ramen": {},
    }
    assert poison.ramen_rows(24, {"capacity": 6}, 3)[0].parameters["topk"] == 6
    defended = poison.ramen_rows(24, {"topk": 2}, 2, defences=True)[-3:]
    assert [type(row.create(classifier, 0)) for row in defended] == [Ramen, QuotaRamen, poison.EvidenceRamen]
    assert {(row.seeds, row.parameters["topk"]) for row in defended} == {(2, 2)}


def test_the_quota_knows_who_sends(data, classifier):
    """Half of the stream is the attacker's, and a tenth of what is learned may be."""
    stored = []

    class Watched(QuotaRamen):
        def step(self, seen, usable, storable=None):
            own = super().step(seen, usable, storable)
            stored.append(int((self.sources == ATTACKER).sum()))
            return own

    one = scene(classifier, data)
    row = PoisonedMethod("ramen", "ramen", {"capacity": 40, "topk": 40}, 1, "quota per source")
    poison.DEFENCES["quota per source"], kept = Watched, poison.DEFENCES["quota per source"]
    try:
        poison_study(classifier, [one], [row], attacks=["noise"], shares=[0.5], batch=9)
    finally:
        poison.DEFENCES["quota per source"] = kept
    assert sum(stored) == 81  # as many as the others send


def test_a_method_that_cannot_run_is_listed(data, classifier):
    mute = ZeroShotClassifier(
        classifier.encoder, classifier.class_embeddings, 30.0, preprocess=classifier.preprocess
    )
    rows = [PoisonedMethod("clipartt", "clipartt"), PoisonedMethod("ensemble", "ensemble")]
    found = poison_study(mute, [scene(mute, data, images=10)], rows, attacks=["noise"], shares=[0.5])
    assert "text" in found["methods"]["clipartt"]["reason"]
    table = poison.summary_table(found)
    assert "clipartt cannot run on this model" in table.notes[0]
    assert {cell.text for cell in table.cells()[0][1:]} == {""}


def test_mistakes(data, classifier):
    with pytest.raises(ValueError, match="attacks"):
        poison_study(classifier, [scene(classifier, data)], [], attacks=["fire"])
    with pytest.raises(ValueError, match="share"):
        poison.attacker_places(10, 1.5, 0)
    with pytest.raises(ValueError, match="attacker_images"):
        scene(classifier, data, own=89)


def test_an_attacker_has_other_drawings_and_ramen_its_own_choices(command):
    words = ["--method", "ramen", "--method", "tent", "--seed", "4", "--seeds", "1", "--set", "topk=2"]
    few = ["--images", "12", "--attacker-images", "4", "--attack", "noise", "--share", "0.5"]
    printed, file = command(poison, *words, *few)
    assert "Points lost to each attack" in printed
    result = json.loads(file.read_text())
    rows = {label: row["parameters"] for label, row in result["data"]["methods"].items()}
    assert rows["ramen"] == {"topk": 2}
    assert rows["ramen, no guard"] == {"guard": 0.0, "topk": 2}
    assert set(rows["tent"]) == {"lr"}  # the preset's
    assert (result["data"]["seeds"], result["data"]["images"]) == ([4], 12)


# -- tables -----------------------------------------------------------------------------------------

STEADY = {
    "zero_shot": [80.0, 82.0],
    "clean": [84.0, 85.0],
    "poisoned": {
        "flood": {"0.1": [83.0, 85.0], "0.5": [79.0, 81.5]},
        "noise": {"0.1": [84.0, 86.0], "0.5": [83.0, 83.0]},
    },
}
DATA = {
    **{"images": 100, "attacker_images": 20, "attacks": ["flood", "noise"], "shares": [0.1, 0.5]},
    **{"eps": 8 / 255, "steps": 20, "batch": 10, "methods": {"steady": STEADY}},
}


def test_what_the_tables_show():
    worst, lost = (
        [[cell.text for cell in row] for row in table(DATA).cells()]
        for table in (poison.summary_table, poison.loss_table)
    )
    numbers = ["81.00 ± 1.41", "84.50 ± 0.71", "0.50 ± 0.71", "4.25 ± 1.06", "-0.75 ± 0.35"]
    assert worst == [["steady", *numbers]]
    assert lost == [["steady", "0.50", "4.25", "-0.50", "1.50"]]
    assert poison.losses(STEADY, "flood", 0.5) == pytest.approx([5, 3.5])
    assert poison.worst_gain(DATA, STEADY) == pytest.approx([-1, -0.5])
