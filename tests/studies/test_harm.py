"""The study of harm: gains are those of the answers, with a fresh method for each stream."""

import json
from dataclasses import replace

import harm
import numpy as np
import pytest
import torch
from harm import HarmImages, StudiedMethod, harm_study

import ramen
from ramen.data.dataset import Dataset, Domain
from ramen.data.streams.stream import make_stream

ZERO_SHOT = StudiedMethod("zero-shot", "ensemble")


def test_answers_are_those_of_the_method(data, classifier):
    """Ramen on the mixed stream and on its first ten images, by hand."""
    chosen = {"topk": 2, "lr": 0.03, "beta": 0.0}
    far = StudiedMethod("far", "ramen", chosen)
    result = harm_study(classifier, data, [ZERO_SHOT, far], seeds=[3], images=20, batch=15)
    streams = {stream.title: stream for stream in HarmImages.of(data, None).streams(20, 3)}
    for title in ("mixed domains", "first 10 images"):
        stream = streams[title].real
        method = ramen.create("ramen", classifier, seed=3, **chosen)
        labels, right, before = torch.from_numpy(stream.labels()), [], []
        for part in stream.batches(15):
            if part.start in stream.resets:
                method.reset()
            out = method.predict(classifier.preprocess(stream.read(part)))
            right.append(out.labels == labels[part])
            before.append(out.zero_shot_logits.argmax(1) == labels[part])
        now, then = torch.cat(right), torch.cat(before)
        row, gain = result["rows"][title], result["rows"][title]["methods"]["far"]
        assert row["zero_shot"] == [pytest.approx(100 * float(then.double().mean()))]
        assert gain["points"] == pytest.approx(100 * float(now.double().mean() - then.double().mean()))
        assert gain["seeds"] == [pytest.approx(gain["points"])]
        assert (gain["repaired"], gain["broken"]) == (int((now & ~then).sum()), int((then & ~now).sum()))
        assert row["methods"]["zero-shot"]["points"] == 0
    about = result["methods"]["far"]
    assert (about["method"], about["parameters"]) == ("ramen", chosen)
    assert (about["runs_with"]["topk"], about["runs_with"]["capacity"]) == (2, 3125)


def test_variants_of_ramen():
    papers, without_guard, chosen = harm.ramen_variants(10)
    assert papers.parameters == ramen.paper_values(10)
    assert without_guard.parameters == {"guard": 0.0}
    assert chosen.parameters == {}


def test_memories_as_large_as_a_batch():
    assert StudiedMethod("note", "note").given(7) == {"memory": 7}


def test_mistakes(data, classifier):
    with pytest.raises(ValueError, match="rammen"):
        harm_study(classifier, data, [StudiedMethod("x", "rammen")])
    with pytest.raises(ValueError, match="methods"):
        harm_study(classifier, data, [ZERO_SHOT, ZERO_SHOT])
    with pytest.raises(ValueError, match="clean"):
        harm_study(classifier, data, clean="cleen")


def test_the_command(command):
    printed, file = command(harm, "--images", "10", "--seeds", "1", "--batch", "10")
    assert "Ramen: no guard" in printed
    result = json.loads(file.read_text())
    assert result["provenance"]["experiment"]["data"] == "tiny"
    assert result["data"]["rows"]["clean images"]["images"] == 10  # drawn beside the two domains
    with pytest.raises(SystemExit):
        command(harm, "--set", "lr=0.1")  # variants have values of their own


def gain(points, margin, seeds, broken=1):
    return {"points": points, "margin": margin, "seeds": seeds, "repaired": 0, "broken": broken}


def test_what_the_tables_show():
    good, bad = gain(1.0, 0.25, [0.5, 1.5]), gain(-0.5001, 0.1, [-0.8, -0.4])
    same = gain(0.0, 0.0, [0.0, 0.0], broken=0)
    row = {"images": 2000, "zero_shot": [80.0, 82.0], "methods": {"a": good, "b": bad, "c": same}}
    data = {"seeds": [0, 1], "batch": 100, "methods": row["methods"], "rows": {"mixed": row}, "left_out": []}
    means, worst = ([[cell.text for cell in row] for row in table.cells()] for table in harm.tables(data))
    assert means == [["mixed", "81.00", "+1.00 ± 0.25", "-0.50 ± 0.10 !", "+0.00"]]
    assert worst == [["mixed", "2,000", "+0.50", "-0.80 !", "+0.00"]]


# -- streams ----------------------------------------------------------------------------------------


class Pixels:
    def __init__(self, domain):
        self.domain = domain

    def read(self, indices):
        return torch.full((len(indices), 3, 4, 4), self.domain, dtype=torch.uint8)


def dataset(names=("fog", "clean", "neon"), each=600, classes=5):
    labels = np.arange(each) % classes
    domains = tuple(Domain(name, labels, Pixels(number)) for number, name in enumerate(names))
    return Dataset("toy", tuple(map(str, range(classes))), domains)


def streams(data, images, seed=0, clean=None):
    return {stream.title: stream for stream in HarmImages.of(data, clean).streams(images, seed)}


def test_what_each_stream_shows():
    found = streams(dataset(), 1000)
    mixed = found["mixed domains"]
    assert len(mixed) == 1200  # all that are not clean
    assert set(mixed.real.domain.tolist()) == {0, 2}
    assert mixed.beginnings == (("first 1,000 images", 1000),)
    for title, length, restarts in (("100 images", 100, 10), ("10 images", 10, 100), ("image", 1, 200)):
        chunks = found[f"first {title}"].real
        assert len(chunks) == length * restarts
        assert chunks.resets == tuple(range(0, length * restarts, length))
    clean = found["clean images"].real
    assert [domain.name for domain in clean.dataset.domains] == ["clean"]
    in_classes = found["sorted by class"].real.labels()
    assert np.count_nonzero(np.diff(in_classes)) == 4
    assert not np.array_equal(np.sort(in_classes), in_classes)  # classes come in a random order
    single = found["one class for ever"].real
    parts = np.split(single.labels(), single.resets[1:])
    assert [set(part) for part in parts] == [{part[0]} for part in parts]
    assert [len(part) for part in parts] == [240] * 4  # all that there are


def test_images_of_nothing():
    found = streams(dataset(), 30)
    noise, black = (found[f"half of it {kind}"] for kind in ("noise", "black"))
    assert (len(noise), len(noise.real)) == (30, 15)
    assert noise.batches(20) == [slice(0, 20), slice(20, 30)]
    real = torch.ones(3, 3, 4, 4)
    assert black.nothing_like(real).count_nonzero() == 0
    drawn = noise.nothing_like(real)
    assert 90 < drawn.double().mean() < 165
    assert torch.equal(drawn, noise.nothing_like(real))


def test_seeds_decide_the_streams():
    one, same, other = (streams(dataset(), 50, seed) for seed in (0, 0, 1))
    for title, stream in one.items():
        assert np.array_equal(stream.real.index, same[title].real.index)
        assert not np.array_equal(stream.real.index, other[title].real.index), title
    assert "first 100 images" in dict(one["mixed domains"].beginnings)
    assert "first 100 images" not in one  # it would be the same run again


def test_which_images_are_clean():
    toy = dataset()
    own = Domain("photos", toy.domains[0].labels[:7], Pixels(9))
    given = HarmImages.of(toy, own)
    assert given.clean.domains == (own,)
    assert set(given.pool.domain.tolist()) == {0, 1, 2}
    assert set(HarmImages.of(toy, "neon").pool.domain.tolist()) == {0, 1}
    assert HarmImages.of(dataset(("fog", "neon")), None).clean is None
    with pytest.raises(ValueError, match="source"):
        HarmImages.of(dataset(("clean",)), None)
    part = make_stream("single", toy, per_domain=10)
    assert len(HarmImages.of(part, None).pool) == 20
    with pytest.raises(ValueError, match="source"):
        HarmImages.of(replace(part, severity=part.domain), None)
