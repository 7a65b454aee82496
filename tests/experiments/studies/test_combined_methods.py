"""Each combination against its definition: plain loops over images, stored gradients and caches."""

import pytest
import torch

from ramen import testing
from ramen.experiments.studies import combined_methods as combined
from ramen.methods._steps import mixed_logits, sample_gradients
from ramen.methods.oga import OGA
from ramen.methods.ramen import Ramen
from ramen.methods.tda import TDA
from ramen.utils.numerics import plain_numerics

PAPER = {"capacity": 4, "topk": 2, "beta": 5.0, "lr": 1e-2, "codec": "fp32"}


@pytest.fixture(scope="module")
def classifier():
    return testing.small_classifier("vit")


def batches(count=4, size=6, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 32, 32, generator=draws) for _ in range(count)]


def logits_of(method, images):
    return method.predict(images).logits


# -- caches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cache"), [("tda", TDA), ("oga", OGA)])
def test_a_cache_of_pretrained_embeddings_adds_what_it_adds_to_zero_shot(classifier, name, cache):
    both, alone, training_free = (
        combined.CachedRamen(classifier, name, **PAPER),
        Ramen(classifier, **PAPER),
        cache(classifier),
    )
    changed = False
    for images in batches():
        first, second = alone.predict(images), training_free.predict(images)
        expected = first.logits + second.logits - first.zero_shot_logits
        torch.testing.assert_close(logits_of(both, images), expected, atol=1e-4, rtol=1e-5)
        changed |= bool((second.logits - first.zero_shot_logits).abs().max() > 1e-3)
    assert changed


@pytest.mark.parametrize(("name", "cache"), [("tda", TDA), ("oga", OGA)])
def test_a_cache_of_adapted_embeddings_has_what_ramen_sees(classifier, name, cache):
    """Without a guard, that is the training-free method on the adapted embeddings."""
    both = combined.CachedRamen(classifier, name, "adapted", **PAPER)
    ramen, training_free = Ramen(classifier, **PAPER), cache(classifier)
    embeddings = []
    ramen._second_pass = lambda images, affine: (
        embeddings.append(classifier.encode(images, affine)) or classifier.logits(embeddings[-1]),
    )
    for images in batches():
        ramen.predict(images)
        with torch.no_grad(), plain_numerics():
            expected = training_free.from_embeddings(
                embeddings[-1], torch.ones(len(images), dtype=torch.bool)
            )
        torch.testing.assert_close(logits_of(both, images), expected.logits, atol=1e-4, rtol=1e-5)


def test_a_cache_is_forgotten_and_saved_with_the_rest(classifier):
    method, images = combined.CachedRamen(classifier, "tda", **PAPER), batches(3)
    first = [logits_of(method, one) for one in images]
    method.reset()
    again = [logits_of(method, one) for one in images[:2]]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=False))
    other = combined.CachedRamen(classifier, "tda", **PAPER)
    other.load_state_dict(method.state_dict())
    assert torch.equal(logits_of(other, images[2]), first[2])
    with pytest.raises(ValueError, match="cache must be"):
        combined.CachedRamen(classifier, "dmn")
    with pytest.raises(ValueError, match="source must be"):
        combined.CachedRamen(classifier, "tda", "both")


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
def test_a_prior_changes_the_answers_of_ramen_alone(classifier, prior):
    method, plain = combined.PriorRamen(classifier, prior, **PAPER), Ramen(classifier, **PAPER)
    for images in batches():
        before = logits_of(plain, images)
        mean = torch.stack([row.softmax(0) for row in before]).mean(0)
        smoothing = max(1 / len(images), 1 / len(mean)) / float(mean.max())
        smooth = (mean + smoothing) / (1 + smoothing * len(mean))
        assert abs(float(smooth.sum()) - 1) < 1e-6
        expected = before * smooth if prior == "logits" else before + smooth.log()
        torch.testing.assert_close(logits_of(method, images), expected, atol=1e-4, rtol=1e-5)


# -- agreement of signs -----------------------------------------------------------------------------


def test_agreement_is_that_of_the_retrieved_signs(classifier):
    """Gradients of all past images are kept in a list, and looked up by the numbers in the support."""
    method, gradients = combined.AgreeingRamen(classifier, 0.6, **{**PAPER, "beta": 0.5, "topk": 4}), []
    affines = []
    passed = method._second_pass
    method._second_pass = lambda images, affine: affines.append(affine) or passed(images, affine)
    moved = []
    for images in batches():
        with plain_numerics():
            gradients += list(sample_gradients(classifier, images)[3])
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
            found = affines[-1][row] - classifier.encoder.base
            torch.testing.assert_close(found[clear], expected[clear], atol=1e-6, rtol=0)
            moved.append(float((found != 0).float().mean()))
    assert min(moved) < 0.9  # the mask has an effect
    assert max(moved) > 0.1


def test_no_agreement_is_needed_or_none_is_enough(classifier):
    free, strict = (combined.AgreeingRamen(classifier, limit, **PAPER) for limit in (0.0, 1.1))
    plain = Ramen(classifier, **PAPER)
    for images in batches(3):
        expected = plain.predict(images)
        assert torch.equal(logits_of(free, images), expected.logits)
        torch.testing.assert_close(logits_of(strict, images), expected.zero_shot_logits, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="visibility must be 'batch'"):
        combined.AgreeingRamen(classifier, visibility="causal")


# -- Ramen without a part ---------------------------------------------------------------------------


def test_a_plain_step_is_as_long_as_the_signed_one(classifier):
    method = combined.PlainStepRamen(classifier, **PAPER)
    gradient = torch.zeros(3, len(classifier.encoder.base))
    gradient[0, 0], gradient[0, 1], gradient[1, 5] = 3.0, -4.0, torch.nan
    moved = method._along(gradient) - classifier.encoder.base
    length = 1e-2 * 2**0.5  # the signed step moves two parameters by 0.01 each
    torch.testing.assert_close(
        moved[0, :3], torch.tensor([-0.6 * length, 0.8 * length, 0.0]), atol=1e-6, rtol=0
    )
    assert not moved[1:].any()


def test_own_gradients_and_raw_ones(classifier):
    own, raw = combined.OwnGradientRamen(classifier, **PAPER), combined.RawGradientRamen(classifier)
    unit = Ramen(classifier)
    for images in batches(3):
        with plain_numerics():
            gradients = sample_gradients(classifier, images)[3]
            with torch.no_grad():
                rows = classifier.encoder.base - 1e-2 * gradients.sign()
                expected = classifier.logits(classifier.encode(images, rows))
        torch.testing.assert_close(logits_of(own, images), expected, atol=1e-4, rtol=1e-4)
        logits_of(raw, images), logits_of(unit, images)
    lengths = [
        method.memory.codec.decode(state["gradients"], state["scales"])[1:].norm(dim=1)
        for method in (raw, unit)
        for state in [method.memory.state()]
    ]
    torch.testing.assert_close(lengths[1], torch.ones_like(lengths[1]), atol=1e-2, rtol=0)
    assert (lengths[0] - 1).abs().min() > 1e-2


def test_the_guard_comes_before_the_cache(classifier):
    guarded = {**PAPER, "guard": 0.4}
    method, plain, cache = (
        combined.CachedRamen(classifier, "tda", **guarded),
        Ramen(classifier, **PAPER),
        TDA(classifier),
    )
    for images in batches(2):
        found = plain.predict(images)
        expected = mixed_logits(found.zero_shot_logits, found.logits, 0.4)
        expected = expected + logits_of(cache, images) - found.zero_shot_logits
        torch.testing.assert_close(logits_of(method, images), expected, atol=1e-4, rtol=1e-5)
