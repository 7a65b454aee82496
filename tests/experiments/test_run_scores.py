"""Runs against a loop that is written plainly here."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import ramen
from ramen.data.drawings import tiny
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.streams.stream import make_stream
from ramen.experiments.experiment import Experiment
from ramen.experiments.measure import STAGES, Stopwatch
from ramen.experiments.store import Store
from ramen.experiments.workers import run_all
from tests.experiments.tiny_runs import DATA, IMAGES, planned
from tests.fakes.results import sample_result

pytestmark = pytest.mark.usefixtures("one_classifier")


def plain_loop(classifier, method, stream, batch=7):
    """Everything that a result says of answers, by the longest way."""
    answers, zero, sure, zero_sure, pairs = [], [], [], [], []
    position = 0
    for part in np.split(np.arange(len(stream)), [r for r in stream.resets if r]):
        method.reset()
        for start in range(0, len(part), batch):
            chunk = slice(part[0] + start, min(part[0] + start + batch, part[-1] + 1))
            images = classifier.preprocess(stream.read(chunk))
            tags = torch.from_numpy(stream.domain[chunk].copy())
            out = method.predict(images, tags=tags, return_support=method.retrieves)
            zero_logits = classifier.logits(classifier.encode(images)).detach()
            for i in range(len(images)):
                answers.append(int(out.logits[i].argmax()))
                zero.append(int(zero_logits[i].argmax()))
                sure.append(float(out.logits[i].double().softmax(0).max()))
                zero_sure.append(float(zero_logits[i].double().softmax(0).max()))
                if out.support is not None:
                    own = int(stream.domain[position])
                    pairs += [(own, int(t)) for t in out.support.tags[i][out.support.valid[i]]]
                position += 1
    return answers, zero, sure, zero_sure, pairs


CERTAINTY = ("ece_mass", "nll", "brier", "aurc", "reliability")


def plain_ece(sure, right):
    error = 0.0
    for low in range(15):
        inside = [i for i, s in enumerate(sure) if low / 15 < s <= (low + 1) / 15]
        if inside:
            mean, accuracy = np.mean([sure[i] for i in inside]), np.mean([right[i] for i in inside])
            error += len(inside) / len(sure) * abs(mean - accuracy)
    return 100 * error


def check_against_plain_loop(result, classifier, stream, batch=7):
    experiment = Experiment.from_result(result)
    method = ramen.create(experiment.method, classifier, seed=experiment.seed, **experiment.parameters)
    answers, zero, sure, zero_sure, pairs = plain_loop(classifier, method, stream, batch)
    labels = stream.labels().tolist()
    names = [domain.name for domain in stream.dataset.domains]
    right = [a == b for a, b in zip(answers, labels, strict=True)]
    plain = [a == b for a, b in zip(zero, labels, strict=True)]
    scores = result["scores"]
    for number, name in enumerate(names):
        own = [i for i in range(len(labels)) if stream.domain[i] == number]
        assert scores["images"][name] == len(own)
        assert scores["domains"][name] == pytest.approx(100 * np.mean([right[i] for i in own]))
        assert scores["zero_shot"]["domains"][name] == pytest.approx(100 * np.mean([plain[i] for i in own]))
        found = scores["domain_changes"][name]
        assert found["repaired"] == sum(right[i] and not plain[i] for i in own)
        assert found["broken"] == sum(plain[i] and not right[i] for i in own)
    assert scores["average"] == pytest.approx(np.mean(list(scores["domains"].values())))
    assert scores["difference"]["points"] == pytest.approx(scores["average"] - scores["zero_shot"]["average"])
    assert scores["changes"] == {
        "both_right": sum(a and b for a, b in zip(right, plain, strict=True)),
        "repaired": sum(a and not b for a, b in zip(right, plain, strict=True)),
        "broken": sum(b and not a for a, b in zip(right, plain, strict=True)),
        "both_wrong": sum(not a and not b for a, b in zip(right, plain, strict=True)),
    }
    per_class = [
        [r for r, label in zip(right, labels, strict=True) if label == c] for c in range(len(OBJECTS))
    ]
    expected = [100 * np.mean(hits) if hits else None for hits in per_class]
    assert scores["classes"] == [None if e is None else pytest.approx(e) for e in expected]
    assert scores["balanced"] == pytest.approx(np.mean([e for e in expected if e is not None]))
    tenth = -(-len(right) // 10)
    assert scores["tail"]["last"] == pytest.approx(100 * np.mean(right[-tenth:]))
    assert scores["zero_shot"]["tail"]["last"] == pytest.approx(100 * np.mean(plain[-tenth:]))
    assert scores["calibration_error"] == pytest.approx(plain_ece(sure, right))
    assert scores["zero_shot"]["calibration_error"] == pytest.approx(plain_ece(zero_sure, plain))
    return pairs, names


def test_a_run_is_the_plain_loop(mixed, classifier):
    stream = make_stream("mixed", ramen_data(), 0)
    for method, result in mixed[1].items():
        pairs, names = check_against_plain_loop(result, classifier, stream)
        check_answers(mixed[0], method, classifier, stream)
        if method == "tent":
            assert result["composition"] is None
            continue
        found = result["composition"]
        counts = [[sum(p == (a, b) for p in pairs) for b in range(4)] for a in range(4)]
        assert (found["domains"], found["counts"]) == (names, counts)
        shares = [100 * counts[i][i] / sum(counts[i]) for i in range(4)]
        assert found["same_domain"] == pytest.approx(np.mean(shares))
        assert found["same_domain_weighted"] == pytest.approx(np.mean(shares))  # domains of the same size
        assert found["chance_weighted"] == pytest.approx(25.0)


def check_answers(out, method, classifier, stream):
    """The file beside a result has the answer to each image."""
    (experiment,) = planned(method)
    found = Store(out).answers(experiment)
    of_method = ramen.create(method, classifier, seed=experiment.seed, **experiment.parameters)
    answers, zero, sure, zero_sure, _ = plain_loop(classifier, of_method, stream)
    assert found["label"].tolist() == stream.labels().tolist()
    assert found["predicted"].tolist() == answers
    assert found["zero_shot"].tolist() == zero
    assert found["confidence"] == pytest.approx(sure, rel=1e-5)
    assert found["zero_shot_confidence"] == pytest.approx(zero_sure, rel=1e-5)
    right = found["label"] == found["predicted"]
    assert np.array_equal(found["label_probability"][right], found["confidence"][right])
    assert (found["label_probability"] <= found["confidence"]).all()


def ramen_data(**options):
    from ramen.data.catalogue import load

    return load("tiny", **{**DATA, **options})


def test_the_result_has_the_keys_of_the_sample(mixed):
    """Whoever builds on results tests with the sample: a real one must have the same shape."""
    free = {
        "parameters",
        "chosen",
        "data_options",
        "protocol_parameters",
        "overrides",
        "domains",
        "images",
        "identity",
    }

    def shape(value, name=""):
        if not isinstance(value, dict) or name in free:
            return type(value).__name__ if name in ("kind", "counts", "seed", "classes") else None
        if name == "domain_changes":
            return shape(next(iter(value.values())))
        return {key: shape(inner, key) for key, inner in value.items()}

    for method, result in mixed[1].items():
        sure = {name: result["scores"].pop(name) for name in CERTAINTY}  # the sample is of version 0.2
        assert shape(result) == shape(sample_result(method))
        result["scores"] |= sure


def test_rounds_have_their_accuracies(tmp_path, classifier):
    changes = {"protocol": "continual_rounds", "protocol_parameters": {"rounds": 2, "per_domain": 3}}
    (result,) = run_all(planned("clip", **changes), tmp_path)
    stream = make_stream("continual_rounds", ramen_data(), 0, rounds=2, per_domain=3)
    assert stream.rounds == (0, 12)
    scores = result["scores"]
    assert scores["rounds"] == scores["zero_shot"]["rounds"]  # the same images twice, nothing is learnt
    assert scores["rounds"] == [pytest.approx(scores["average"])] * 2
    check_against_plain_loop(result, classifier, stream)


def test_single_domains_with_resets(tmp_path, classifier):
    (result,) = run_all(planned("ramen", protocol="single", batch=5), tmp_path)
    stream = make_stream("single", ramen_data(), 0)
    assert stream.resets == (0, 8, 16, 24)
    check_against_plain_loop(result, classifier, stream, batch=5)
    assert result["cost"]["batches"] == 8  # 5 and 3 of each domain
    assert result["provenance"]["method"]["reset"] == "before each of 4 domains"
    counts = torch.tensor(result["composition"]["counts"])
    assert torch.equal(counts, counts.diagonal().diag())  # no other domain was seen since the reset
    assert result["composition"]["same_domain"] == 100.0


def test_a_part_of_the_stream(tmp_path, classifier):
    """Domains without pictures have no accuracy, and shares are weighted by pictures."""
    protocol = {"limit": 9, "order": ["neon", "chalk", "fog", "impulse_noise"]}
    options = {**DATA, "pictures": 6}
    (result,) = run_all(
        planned("ramen", protocol="continual", protocol_parameters=protocol, data_options=options), tmp_path
    )
    assert result["scores"]["images"] == {"neon": 6, "chalk": 3}
    assert list(result["scores"]["domains"]) == ["neon", "chalk"]
    found = result["composition"]
    assert found["domains"] == ["neon", "chalk"]
    a, b = (100 * found["counts"][i][i] / sum(found["counts"][i]) for i in range(2))
    assert found["same_domain"] == pytest.approx((a + b) / 2)
    assert found["same_domain_weighted"] == pytest.approx((6 * a + 3 * b) / 9)
    assert found["chance_weighted"] == pytest.approx(100 * (4 / 9 + 1 / 9))


def test_costs_and_provenance(mixed, classifier):
    result = mixed[1]["tent"]
    cost = result["cost"]
    assert set(cost["seconds"]) == set(STAGES)
    assert all(seconds > 0 for seconds in cost["seconds"].values())
    assert cost["ms_an_image"] == pytest.approx(1000 * cost["seconds"]["predict"] / IMAGES)
    assert (cost["images"], cost["batches"]) == (IMAGES, 5)
    assert 0 < cost["first_batch_seconds"] <= cost["seconds"]["predict"]
    assert cost["peak_host_bytes"] > 10**8
    assert cost["passes"] == {"forward": 1, "backward": 1}
    told = result["provenance"]
    assert told["classifier"]["weights"] == f"sha256:{classifier.fingerprint()['encoder']}"
    assert told["classifier"]["templates"] == list(ramen.prompts.ENSEMBLE)
    assert told["classifier"]["preprocess"]["size"] == [32, 32]
    assert told["stream"]["order"] == make_stream("mixed", ramen_data(), 0).identity()["order"]
    assert told["dataset"]["domains"] == dict.fromkeys(DATA["domains"], 8)
    defaults = {name: value for name, value in ramen.describe("tent").defaults.items() if name != "seed"}
    assert told["method"]["parameters"] == {**defaults, "lr": 1e-3}
    assert told["method"]["predicts_with"] == ramen.describe("tent").predicts_with
    assert told["versions"]["torch"] == torch.__version__
    assert told["commit"] is None or len(told["commit"].removesuffix("+changes")) == 40
    assert told["started"] <= told["finished"]


def test_results_are_plain_json(mixed):
    for result in mixed[1].values():
        assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_drawing_is_nobodys_time(tmp_path, classifier, monkeypatch):
    """All drawings are made before the clock of the first run starts, and once."""
    drawn, running = [], []
    draw, stage = tiny.draw_domain, Stopwatch.stage

    @contextmanager
    def watched(self, name):
        running.append(name)
        with stage(self, name):
            yield
        running.pop()

    def recorded(domain, *given):
        drawn.append((domain, tuple(running)))
        return draw(domain, *given)

    monkeypatch.setattr(Stopwatch, "stage", watched)
    monkeypatch.setattr(tiny, "draw_domain", recorded)
    run_all(planned("tent", "ensemble"), tmp_path)
    assert drawn
    assert {stages for _, stages in drawn} == {()}
    assert len({domain for domain, _ in drawn}) == len(drawn)
