"""The study of combinations: the same images for all, and differences image by image."""

import pytest
import torch

from ramen.data.registry import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.run.results import read_result, write_result
from ramen.experiments.studies.combinations import (
    ADDED,
    PARTS,
    RAMEN,
    RamenVariant,
    chosen_variants,
    combinations_study,
    difference_table,
    variants,
)
from ramen.methods._registry import create
from ramen.methods.ramen import Ramen
from ramen.models.tiny_clip.model import load_tiny


@pytest.fixture(scope="module")
def data():
    return load("tiny", domains=["fog", "neon"], pictures=12)


@pytest.fixture(scope="module")
def classifier(data):
    return load_tiny(data.classes)


@pytest.fixture(scope="module")
def streams(data):
    return [make_stream("mixed", data, seed) for seed in (0, 1)]


ROWS = [RamenVariant(RAMEN, PARTS), RamenVariant("no guard", PARTS, Ramen, {"guard": 0.0, "lr": 0.3})]


def answers(classifier, stream, **parameters):
    method = create("ramen", classifier, seed=stream.seed, **parameters)
    labels = torch.from_numpy(stream.labels())
    return torch.cat(
        [
            method.predict(classifier.preprocess(stream.read(batch))).labels == labels[batch]
            for batch in stream.batches(5)
        ]
    )


def test_differences_are_those_of_the_answers(classifier, streams, tmp_path):
    result = combinations_study(classifier, streams, rows=ROWS, batch=5)
    write_result(tmp_path / "study.json", result)
    assert read_result(tmp_path / "study.json") == result
    data = result["data"]
    base = [answers(classifier, stream) for stream in streams]
    other = [answers(classifier, stream, guard=0.0, lr=0.3) for stream in streams]
    row = data["variants"]["no guard"]
    means = [100 * float(right.double().mean()) for right in other]
    assert row["accuracy"] == pytest.approx(means)
    differences = [100 * float((a.double() - b.double()).mean()) for a, b in zip(other, base, strict=True)]
    assert any(differences)
    assert row["above_ramen_seeds"] == pytest.approx(differences)
    assert row["above_ramen"]["points"] == pytest.approx(sum(differences) / 2)
    now, before = torch.cat(other), torch.cat(base)
    assert (row["repaired"], row["broken"]) == (int((now & ~before).sum()), int((before & ~now).sum()))
    assert data["variants"][RAMEN]["above_ramen"] == {"points": 0.0, "margin": 0.0}
    assert (data["seeds"], data["images"], data["batch"]) == ([0, 1], [24, 24], 5)


def test_parts_can_be_run_elsewhere(classifier, streams):
    here = combinations_study(classifier, streams, {"topk": 2}, ROWS, batch=5)
    asked = []

    def divide(parts):
        asked.extend(parts)
        settings = {RAMEN: {}, "no guard": {"guard": 0.0, "lr": 0.3}}
        return [answers(classifier, streams[n], topk=2, **settings[title]) for title, n in parts]

    assert combinations_study(classifier, streams, {"topk": 2}, ROWS, batch=5, divide=divide) == here
    assert asked == [(RAMEN, 0), (RAMEN, 1), ("no guard", 0), ("no guard", 1)]


def test_the_verdict_follows_the_interval():
    def row(points, margin):
        difference = {"points": points, "margin": margin}
        return {
            "family": ADDED,
            "accuracy": [60.0, 62.0],
            "above_zero_shot": difference,
            "above_ramen": difference,
            "repaired": 3,
            "broken": 1,
        }

    data = {"dataset": "tiny", "protocol": "mixed", "seeds": [0, 1], "images": [10, 10], "batch": 5}
    rows = {"good": row(0.5, 0.4), "bad": row(-0.5, 0.4), "open": row(0.5, 0.6)}
    table = difference_table({**data, "zero_shot": [50.0], "variants": rows}, ADDED)
    assert [[cell.text for cell in line] for line in table.rows] == [
        ["good", "61.00", "+0.50 ± 0.40", "+0.50 ± 0.40", "3 / 1", "better"],
        ["bad", "61.00", "-0.50 ± 0.40", "-0.50 ± 0.40", "3 / 1", "worse"],
        ["open", "61.00", "+0.50 ± 0.60", "+0.50 ± 0.60", "3 / 1", "no difference seen"],
    ]
    assert not difference_table({**data, "zero_shot": [50.0], "variants": rows}, PARTS).rows[1:]


@pytest.mark.parametrize("variant", variants(), ids=lambda one: one.title)
def test_every_variant_answers(classifier, streams, variant):
    method = variant.create(classifier, {"topk": 2}, seed=3)
    stream = streams[0]
    for batch in stream.batches(12):
        prediction = method.predict(classifier.preprocess(stream.read(batch)))
        assert prediction.logits.isfinite().all()
        assert not prediction.fallback.any()
    assert method.seed == 3
    assert method.parameters["topk"] == 2


def test_some_variants(classifier, streams):
    assert len(chosen_variants(None)) == len(variants()) > 20
    rows = chosen_variants(["no guard"])
    assert [one.title for one in rows] == [RAMEN, "no guard"]
    result = combinations_study(classifier, streams[:1], rows=rows, batch=12)
    (table,) = result["tables"]  # none of what is added
    assert [row[0] for row in table["rows"]] == ["zero-shot", RAMEN, "no guard"]
    with pytest.raises(ValueError, match="variant must be one of"):
        chosen_variants(["no gard"])


def test_mistakes(classifier, streams):
    with pytest.raises(ValueError, match="one called 'Ramen'"):
        combinations_study(classifier, streams, rows=ROWS[1:])
    with pytest.raises(ValueError, match="rows must have a title each"):
        combinations_study(classifier, streams, rows=[*ROWS, ROWS[1]])
    with pytest.raises(ValueError, match=r"each with a seed of its own, got seeds \[0, 0\]"):
        combinations_study(classifier, [streams[0]] * 2, rows=ROWS)
    with pytest.raises(ValueError, match="topk must be"):
        combinations_study(classifier, streams, {"topk": 0}, ROWS)
