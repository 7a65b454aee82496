"""Each combination against its definition, by plain loops; and differences that are those of the answers."""

import json

import combinations as combined
import pytest
import torch
from combinations import ADDED, PARTS, RAMEN, RamenVariant, chosen_variants, combinations_study, variants

from ramen import testing
from ramen.data.streams.stream import make_stream
from ramen.methods._losses import mixed_logits
from ramen.methods._passes import Seen, drive, sample_gradients
from ramen.methods.oga import OGA
from ramen.methods.ramen import Ramen
from ramen.methods.tda import TDA
from ramen.utils.numerics import plain_numerics

PAPER = {"capacity": 4, "topk": 2, "beta": 5.0, "lr": 1e-2, "codec": "fp32"}


@pytest.fixture(scope="module")
def small():
    return testing.small_classifier("vit")


def batches(count=4, size=6, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 32, 32, generator=draws) for _ in range(count)]


def logits_of(method, images):
    return method.predict(images).logits


# -- caches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cache"), [("tda", TDA), ("oga", OGA)])
def test_a_cache_of_pretrained_embeddings_adds_what_it_adds_to_zero_shot(small, name, cache):
    both, alone, training_free = (
        combined.CachedRamen(small, name, **PAPER),
        Ramen(small, **PAPER),
        cache(small),
    )
    changed = False
    for images in batches():
        first, second = alone.predict(images), training_free.predict(images)
        expected = first.logits + second.logits - first.zero_shot_logits
        torch.testing.assert_close(logits_of(both, images), expected, atol=1e-4, rtol=1e-5)
        changed |= bool((second.logits - first.zero_shot_logits).abs().max() > 1e-3)
    assert changed


@pytest.mark.parametrize(("name", "cache"), [("tda", TDA), ("oga", OGA)])
def test_a_cache_of_adapted_embeddings_has_what_ramen_sees(small, name, cache):
    """Without a guard, that is the training-free method on the adapted embeddings."""
    both = combined.CachedRamen(small, name, "adapted", **PAPER)
    ramen, training_free = Ramen(small, **PAPER), cache(small)
    embeddings, answer = [], ramen.answer
    ramen.answer = lambda second, *kept: embeddings.append(second.embeddings) or answer(second, *kept)
    for images in batches():
        ramen.predict(images)
        with torch.no_grad(), plain_numerics():
            steps = training_free.adapt(images, torch.ones(len(images), dtype=torch.bool))
            expected = drive(steps, lambda wanted: Seen(embeddings[-1]))
        torch.testing.assert_close(logits_of(both, images), expected.logits, atol=1e-4, rtol=1e-5)


def test_a_cache_is_forgotten_and_saved_with_the_rest(small):
    method, images = combined.CachedRamen(small, "tda", **PAPER), batches(3)
    first = [logits_of(method, one) for one in images]
    method.reset()
    again = [logits_of(method, one) for one in images[:2]]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=False))
    other = combined.CachedRamen(small, "tda", **PAPER)
    other.load_state_dict(method.state_dict())
    assert torch.equal(logits_of(other, images[2]), first[2])
    with pytest.raises(ValueError, match="cache must be"):
        combined.CachedRamen(small, "dmn")
    with pytest.raises(ValueError, match="source must be"):
        combined.CachedRamen(small, "tda", "both")


# -- prior ------------------------------------------------------------------------------------------


def test_the_prior_of_a_batch_worked_out_by_hand():
    """Two images, two classes: probabilities 3/4 and 1/4 for the first, 1/4 and 3/4 for the second."""
    logits = torch.tensor([[3.0, 1.0], [1.0, 3.0], [torch.nan, 0.0]]).log()
    usable = torch.tensor([True, True, False])
    torch.testing.assert_close(combined.batch_prior(logits, usable), torch.tensor([0.5, 0.5]))
    # one image alone: mean (3/4, 1/4), smoothing max(1, 1/2) / (3/4) = 4/3, so (25/12, 19/12) / (11/3)
    alone = combined.batch_prior(logits[:1], usable[:1])
    torch.testing.assert_close(alone, torch.tensor([25 / 44, 19 / 44]))
    nothing = combined.batch_prior(logits, torch.zeros(3, dtype=torch.bool))
    assert nothing.isfinite().all()


@pytest.mark.parametrize("prior", combined.PRIORS)
def test_a_prior_changes_the_answers_of_ramen_alone(small, prior):
    method, plain = combined.PriorRamen(small, prior, **PAPER), Ramen(small, **PAPER)
    for images in batches():
        before = logits_of(plain, images)
        mean = torch.stack([row.softmax(0) for row in before]).mean(0)
        smoothing = max(1 / len(images), 1 / len(mean)) / float(mean.max())
        smooth = (mean + smoothing) / (1 + smoothing * len(mean))
        assert abs(float(smooth.sum()) - 1) < 1e-6
        expected = before * smooth if prior == "logits" else before + smooth.log()
        torch.testing.assert_close(logits_of(method, images), expected, atol=1e-4, rtol=1e-5)


# -- agreement of signs -----------------------------------------------------------------------------


def watched(step, affines):
    """A step of Ramen that notes the weights that it takes."""

    def stepped(*given):
        own = step(*given)
        affines.append(own.affine.clone())
        return own

    return stepped


def test_agreement_is_that_of_the_retrieved_signs(small):
    """Gradients of all past images are kept in a list, and looked up by the numbers in the support."""
    method, gradients = combined.AgreeingRamen(small, 0.6, **{**PAPER, "beta": 0.5, "topk": 4}), []
    affines = []
    method.step = watched(method.step, affines)
    moved = []
    for images in batches():
        with plain_numerics():
            gradients += list(sample_gradients(small, images)[3])
        support = method.predict(images, return_support=True).support
        for row in range(len(images)):
            chosen = [
                (int(n), float(w))
                for n, w, v in zip(
                    support.numbers[row], support.weights[row], support.valid[row], strict=True
                )
                if v
            ]
            total = sum(w for _, w in chosen)
            signs = sum(w * gradients[n].sign() for n, w in chosen)
            summed = sum(w * gradients[n] for n, w in chosen)
            clear = ((signs.abs() - 0.6 * total).abs() > 1e-5) & (summed.abs() > 1e-9)
            expected = torch.where(signs.abs() >= 0.6 * total, -1e-2 * summed.sign(), 0.0)
            found = affines[-1][row] - small.encoder.base
            torch.testing.assert_close(found[clear], expected[clear], atol=1e-6, rtol=0)
            moved.append(float((found != 0).float().mean()))
    assert min(moved) < 0.9  # the mask has an effect
    assert max(moved) > 0.1


def test_no_agreement_is_needed_or_none_is_enough(small):
    free, strict = (combined.AgreeingRamen(small, limit, **PAPER) for limit in (0.0, 1.1))
    plain = Ramen(small, **PAPER)
    for images in batches(3):
        expected = plain.predict(images)
        assert torch.equal(logits_of(free, images), expected.logits)
        torch.testing.assert_close(logits_of(strict, images), expected.zero_shot_logits, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="visibility must be 'batch'"):
        combined.AgreeingRamen(small, visibility="causal")


# -- Ramen without a part ---------------------------------------------------------------------------


def test_own_gradients(small):
    own = combined.OwnGradientRamen(small, **PAPER)
    for images in batches(3):
        with plain_numerics():
            gradients = sample_gradients(small, images)[3]
            with torch.no_grad():
                rows = small.encoder.base - 1e-2 * gradients.sign()
                expected = small.logits(small.encode(images, rows))
        torch.testing.assert_close(logits_of(own, images), expected, atol=1e-4, rtol=1e-4)


def test_the_guard_comes_before_the_cache(small):
    guarded = {**PAPER, "guard": 0.4}
    method, plain, cache = (
        combined.CachedRamen(small, "tda", **guarded),
        Ramen(small, **PAPER),
        TDA(small),
    )
    for images in batches(2):
        found = plain.predict(images)
        expected = mixed_logits(found.zero_shot_logits, found.logits, 0.4)
        expected = expected + logits_of(cache, images) - found.zero_shot_logits
        torch.testing.assert_close(logits_of(method, images), expected, atol=1e-4, rtol=1e-5)


# -- the study --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def streams(data):
    return [make_stream("mixed", data, seed, limit=24) for seed in (0, 1)]


ROWS = [RamenVariant(RAMEN, PARTS), RamenVariant("no guard", PARTS, Ramen, {"guard": 0.0, "lr": 0.3})]


def answers(classifier, stream, **parameters):
    method = Ramen(classifier, seed=stream.seed, **parameters)
    labels, parts = torch.from_numpy(stream.labels()), stream.batches(5)
    found = [method.predict(classifier.preprocess(stream.read(part))).labels for part in parts]
    return torch.cat(found) == labels


def test_differences_are_those_of_the_answers(classifier, streams):
    data = combinations_study(classifier, streams, rows=ROWS, batch=5)
    base = [answers(classifier, stream) for stream in streams]
    other = [answers(classifier, stream, guard=0.0, lr=0.3) for stream in streams]
    row = data["variants"]["no guard"]
    assert row["accuracy"] == pytest.approx([100 * float(right.double().mean()) for right in other])
    differences = [100 * float((a.double() - b.double()).mean()) for a, b in zip(other, base, strict=True)]
    assert any(differences)
    assert row["above_ramen_seeds"] == pytest.approx(differences)
    assert row["above_ramen"]["points"] == pytest.approx(sum(differences) / 2)
    now, before = torch.cat(other), torch.cat(base)
    assert (row["repaired"], row["broken"]) == (int((now & ~before).sum()), int((before & ~now).sum()))
    assert data["variants"][RAMEN]["above_ramen"] == {"points": 0.0, "margin": 0.0}
    assert (data["seeds"], data["images"], data["batch"]) == ([0, 1], [24, 24], 5)


@pytest.mark.parametrize("variant", variants(), ids=lambda one: one.title)
def test_every_variant_answers(classifier, streams, variant):
    method, stream = variant.create(classifier, {"topk": 2}, seed=3), streams[0]
    for batch in stream.batches(12):
        prediction = method.predict(classifier.preprocess(stream.read(batch)))
        assert prediction.logits.isfinite().all()
        assert not prediction.fallback.any()


@pytest.mark.parametrize(
    ("points", "margin", "verdict"),
    [(0.5, 0.4, "better"), (-0.5, 0.4, "worse"), (0.5, 0.6, "no difference seen")],
)
def test_the_verdict_follows_the_interval(points, margin, verdict):
    beside = {"points": points, "margin": margin}
    row = {"family": ADDED, "accuracy": [60.0, 62.0], "above_zero_shot": beside, "above_ramen": beside}
    data = {"dataset": "tiny", "protocol": "mixed", "seeds": [0, 1], "images": [10, 10], "batch": 5}
    rows = {"a": {**row, "repaired": 3, "broken": 1}}
    table = combined.difference_table({**data, "zero_shot": [50.0], "variants": rows}, ADDED)
    shown = f"{points:+.2f} ± {margin:.2f}"
    assert [cell.text for cell in table.cells()[0]] == ["a", "61.00", shown, shown, "3 / 1", verdict]


def test_some_variants(command):
    assert len(chosen_variants(None)) == len(variants()) > 20
    with pytest.raises(ValueError, match="variant"):
        chosen_variants(["no gard"])
    words = ["--variant", "no guard", "--seeds", "1", "--limit", "10", "--batch", "10", "--set", "topk=2"]
    printed, file = command(combined, *words)
    assert "no guard" in printed
    assert "another method" not in printed  # there is nothing that is added
    data = json.loads(file.read_text())["data"]
    assert (list(data["variants"]), data["parameters"]["topk"]) == ([RAMEN, "no guard"], 2)
