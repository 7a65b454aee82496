"""What holds for many methods, with settings in which it shows; ``ramen.testing`` has what holds for all."""

from typing import Any

import pytest
import torch

import ramen
from ramen import testing
from ramen.models.classifier import MissingPartError
from tests.contract.settings import FEWER_STEPS
from tests.oracles.mutable_model import stream

LEARNING: list[tuple[str, dict[str, Any]]] = [
    ("tent", {"lr": 1e-2}),
    ("tent", {"lr": 0.05, "optimizer": "sgd"}),
    ("tent", {"lr": 1e-3, "optimizer": "adam", "loss": "come"}),
    ("entmin", {"lr": 1e-2}),
    ("note", {"lr": 1e-2, "memory": 7}),
    ("rotta", {"memory": 7, "interval": 4, "nu": 0.2}),
    ("sar", {"lr": 5e-3, "margin": 0.8}),
    ("eata", {"lr": 5e-4, "margin": 0.35, "redundancy": 0.5}),
    ("eata", {"lr": 5e-4, "margin": 0.8, "redundancy": 2.0, "class_balance": 0.9}),
    *(
        ("deyo", {"lr": 5e-4, "margin": 0.35, "plpd_threshold": 0.1, "transform": transform})
        for transform in ("patch", "pixel", "occlusion")
    ),
    ("roid", {"lr": 1e-3}),
    ("roid", {"lr": 1e-3, "filter": "kalman"}),
    ("batclip", {"lr": 1e-4, "optimizer": "sgd"}),
    ("batclip", {"lr": 1e-4, "towers": "image"}),
    ("cliptta", {"iterations": 3, "shots": 2, "sample": 7}),
    ("clipot", {"templates": "single"}),
    ("moetta", {"lr": 1e-3, "experts": 3}),
    ("mint", {"prior": 20.0}),
    ("watt", {"rounds": 1, "steps": 1}),
    ("clipartt", {"iterations": 3}),
    ("tda", {"entropy_lower": 0.1, "entropy_upper": 0.4, "negative_beta": 1.3}),
    ("dmn", {"capacity": 3, "alpha": 1.0}),
    ("t3a", {"capacity": 3}),
    ("oga", {"capacity": 3}),
    ("onzeta", {"horizon": 20}),
    ("stata", {}),
    *(("lame", {"affinity": affinity, "neighbours": 3}) for affinity in ("kernel", "neighbours", "linear")),
]


@pytest.mark.parametrize("bad", [torch.nan, 1e308])
@pytest.mark.parametrize(("name", "settings"), LEARNING, ids=str)
def test_a_refused_image_leaves_no_trace(name: str, settings: dict, bad: float) -> None:
    """A bad image in every batch changes neither other answers nor what is learned; a whole batch, nothing.

    1e308 is a finite pixel, but not a finite activation: what it has spoiled is computed again without it.
    """
    clf = testing.small_classifier(dtype="float64")
    with_bad, without = (ramen.create(name, clf, **settings) for _ in range(2))
    fresh = without.state.content()
    for images in stream(4):
        spoiled = torch.cat([images[:2], torch.full_like(images[:1], bad), images[2:]])
        some, every = with_bad.predict(spoiled), without.predict(images)
        assert some.fallback.tolist() == [False, False, True, False, False, False]
        torch.testing.assert_close(some.logits[~some.fallback], every.logits, rtol=0, atol=1e-6)
    learned = without.state.content()
    both = learned.keys() & fresh.keys()
    assert not learned or not all(torch.equal(learned[part], fresh[part]) for part in both)
    kept = with_bad.state.content()
    for part, tensor in learned.items():
        torch.testing.assert_close(kept[part], tensor, rtol=1e-6, atol=1e-6)
    assert with_bad.predict(torch.full_like(images, bad)).fallback.all()
    for part, tensor in with_bad.state.content().items():
        torch.testing.assert_close(tensor, kept[part], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("note", {"memory": 6}),
        ("rotta", {"memory": 5}),
        ("roid", {"lr": 1e-2}),
        ("cotta", {"threshold": 1.0, "augmentations": 2}),
        ("cliptta", {"iterations": 3, "shots": 2, "sample": 5}),
        ("moetta", {"experts": 3}),
        ("deyo", {"lr": 5e-4, "margin": 0.35, "plpd_threshold": 0.1}),
        ("deyo", {"lr": 5e-4, "margin": 0.35, "plpd_threshold": 0.1, "transform": "pixel"}),
        ("ramen", {"consistency": False, "capacity": 3, "topk": 1}),
    ],
    ids=str,
)
def test_another_seed_draws_otherwise(name: str, settings: dict) -> None:
    """That the same seed gives the same answers is a clause of the contract."""
    clf, found = testing.small_classifier(), []
    for seed in (0, 1):
        method = ramen.create(name, clf, **settings, seed=seed)
        answers = [method.predict(images.float()).logits for images in stream(6)]
        found.append([*answers, *method.state.content().values()])
    assert not all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tda", {"entropy_lower": 0.1, "entropy_upper": 0.4}),
        ("dmn", {"capacity": 4, "alpha": 1.0}),
        ("onzeta", {"horizon": 20}),  # which follows at most 40 images at a time
    ],
    ids=str,
)
def test_answers_do_not_depend_on_how_the_stream_is_cut(name: str, settings: dict) -> None:
    clf, images = testing.small_classifier(dtype="float64"), torch.cat(stream(9))
    expected = ramen.create(name, clf, **settings).predict(images).logits
    for size in (1, 4, 44):
        method = ramen.create(name, clf, **settings)
        logits = torch.cat([method.predict(part).logits for part in images.split(size)])
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["zero", "mta", "tps", "tpt"])
def test_views_depend_on_the_image_and_the_seed_alone(name: str) -> None:
    """Cut in any way, in any order, with bad images between: an image's answer is always the same."""
    clf, images = testing.small_classifier(dtype="float64"), torch.cat(stream(1, 7))
    expected = ramen.create(name, clf, views=8).predict(images).logits
    method = ramen.create(name, clf, views=8)
    parts = [method.predict(part).logits for part in images.split([1, 4, 2])]
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-9)
    backwards = ramen.create(name, clf, views=8).predict(images.flip(0)).logits
    torch.testing.assert_close(backwards.flip(0), expected, rtol=0, atol=1e-9)
    for bad_pixel in (torch.nan, 1e308):
        out = method.predict(torch.cat([torch.full_like(images[:1], bad_pixel), images]))
        assert out.fallback.tolist() == [True] + [False] * 7
        torch.testing.assert_close(out.logits[1:], expected, rtol=0, atol=1e-9)
    for views_at_once in (3, 8, 17, 1000):  # parts of an image's views, and of several images
        out = ramen.create(name, clf, views=8, views_at_once=views_at_once).predict(images)
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-9)
    assert not torch.allclose(ramen.create(name, clf, views=8, seed=1).predict(images).logits, expected)


@pytest.mark.parametrize("name", ramen.list_methods())
def test_what_is_learned_in_half_precision_is_kept_in_fp32(name: str) -> None:
    """But for whole images and the rows of Ramen's memory."""
    method = ramen.create(name, testing.small_classifier(dtype="bfloat16"), **FEWER_STEPS.get(name, {}))
    method.predict(stream(1)[0].float())
    kept = {
        part: tensor.dtype for part, tensor in method.state.content().items() if tensor.is_floating_point()
    }
    half = {part for part, dtype in kept.items() if dtype.itemsize < 4}
    assert half <= {"images", "gradients", "embeddings"}, kept


@pytest.mark.parametrize("name", ramen.list_methods())
def test_one_class(name: str) -> None:
    """There is nothing to decide, and nothing is 0/0."""
    settings = {"topk": 1} if name == "clipartt" else FEWER_STEPS.get(name, {})
    method = ramen.create(name, testing.small_classifier(classes=1), **settings)
    for images in stream(2):
        out = method.predict(images.float())
        assert not out.fallback.any()
        assert out.labels.tolist() == [0] * 5


@pytest.mark.parametrize("name", FEWER_STEPS)
def test_the_defaults_take_as_many_passes_as_the_record_says(name: str) -> None:
    """The contract runs these methods with fewer steps."""
    settings: dict[str, Any] = {"threshold": 1.0} if name == "cotta" else {}  # unsure of every batch
    clf, info = testing.small_classifier(), ramen.describe(name)
    bench = testing.Bench(
        lambda c, **more: ramen.create(name, c, **settings, **more),
        clf,
        tuple(images.float() for images in stream(2)),
    )
    testing.check_passes(bench)
    assert ramen.create(name, clf, **settings).passes() == (info.forwards, info.backwards)


# -- states and parameters --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ramen.list_methods())
def test_counts_below_zero_are_refused(name: str) -> None:
    """But for tags, which are the caller's own."""
    method = ramen.create(name, testing.small_classifier(), **FEWER_STEPS.get(name, {}))
    for images in stream(2):
        method.predict(images.float())
    state = method.state_dict()
    for part, tensor in state.items():
        if tensor.dtype in (torch.int32, torch.int64) and tensor.numel() and part != "content.tags":
            wrong = tensor.clone()
            wrong.view(-1)[0] = -9
            with pytest.raises(ValueError, match="state"):
                method.load_state_dict({**state, part: wrong})
    assert all(torch.equal(state[part], tensor) for part, tensor in method.state_dict().items())


@pytest.mark.parametrize(
    ("name", "part", "change"),
    [
        ("note", "labels", lambda t: t + 5),
        ("note", "seen", lambda t: t * 0),  # fewer than are stored
        ("note", "images", lambda t: t[:2]),  # fewer than there are labels
        ("rotta", "labels", lambda t: t + 5),
        ("rotta", "arrived", lambda t: t * 0),
        ("rotta", "ages", lambda t: t * 0),
        ("tda", "positive.counts", lambda t: t + 9),
        ("tda", "negative.counts", lambda t: t + 9),
        ("dmn", "counts", lambda t: t + 99),
        ("onzeta", "prior", lambda t: t - 1e3),
    ],
)
def test_values_that_no_stream_leaves_are_refused(name: str, part: str, change: Any) -> None:
    method = ramen.create(name, testing.small_classifier())
    method.predict(stream(1)[0].float())
    state = method.state_dict()
    with pytest.raises(ValueError, match="state"):
        method.load_state_dict({**state, f"content.{part}": change(state[f"content.{part}"])})
    assert all(torch.equal(state[name], tensor) for name, tensor in method.state_dict().items())


@pytest.mark.parametrize(
    ("name", "there", "here"),
    [
        ("tent", {"optimizer": "adam"}, {}),
        ("batclip", {}, {"towers": "image"}),
        ("tda", {"mask_lower": 0.04}, {}),
        *((name, {"capacity": 3}, {"capacity": 4}) for name in ("ramen", "dmn", "t3a", "oga")),
        *((name, {"memory": 3}, {"memory": 4}) for name in ("note", "rotta")),
        ("ramen", {"capacity": 6, "codec": "fp32"}, {"capacity": 6, "codec": "fp16"}),
        ("ramen", {"capacity": 6, "balance": False}, {"capacity": 6}),
        ("ramen", {"capacity": 6, "fifo": "float16"}, {"capacity": 6}),
        ("ramen", {"beta": 5.0}, {}),  # which stores gradients as they are
        ("ramen", {}, {"beta": 5.0}),
    ],
    ids=str,
)
def test_a_state_of_other_saved_parameters_is_refused(name: str, there: dict, here: dict) -> None:
    clf = testing.small_classifier()
    named = "gradients" if "beta" in (there | here) else "|".join(there | here)
    with pytest.raises(ValueError, match=f"({named}) is .* there and .* here"):
        ramen.create(name, clf, **here).load_state_dict(ramen.create(name, clf, **there).state_dict())


@pytest.mark.parametrize(
    ("name", "there", "here"),
    [
        ("ramen", {"capacity": 6}, {"capacity": 6, "topk": 2, "lr": 0.1, "placement": "cpu"}),
        ("tda", {}, {"positive_alpha": 9.0, "negative_beta": 3.0, "entropy_lower": 0.1}),
        ("dmn", {}, {"alpha": 1.0, "beta": 1.0}),
        ("t3a", {}, {"text": "support", "text_weight": 2}),
        ("oga", {}, {"tau": 0.5, "divide_by": "capacity"}),
    ],
    ids=str,
)
def test_other_parameters_may_change_between_runs(name: str, there: dict, here: dict) -> None:
    clf = testing.small_classifier()
    first, second = ramen.create(name, clf, **there), ramen.create(name, clf, **here)
    first.predict(stream(1)[0].float())
    second.load_state_dict(first.state_dict())
    assert second.images_seen == 5


@pytest.mark.parametrize(
    ("name", "parameters", "named"),
    [
        ("ramen", {"capacity": 75, "topk": 100}, "topk .* capacity"),
        ("ramen", {"fifo": "float16", "visibility": "causal"}, "visibility"),
        ("ramen", {"memory_budget": "2 GiG"}, "memory_budget"),
        ("ramen", {"memory_budget": 1.5}, "memory_budget"),
        ("ramen", {"capacity": 750, "codec": "fp16", "memory_budget": "9 kB"}, "memory_budget"),
        ("ramen", {"memory_budget": 9}, "memory_budget"),
        ("ramen", {"capacity": 10**9}, "capacity"),
        ("rotta", {"mean": (0.5, 0.5, 0.5)}, "mean and std"),
        ("rotta", {"mean": (0.5,), "std": (1, 1, 1)}, "mean and std"),
        ("rotta", {"mean": (0, 0, 0), "std": (1, 0, 1)}, "std"),
        ("rotta", {"statistics": "batch"}, "statistics"),
        ("rotta", {"statistics": "robust"}, "statistics"),  # without BatchNorm
        ("tda", {"entropy_lower": 0.6}, "entropy_upper"),
        ("tda", {"mask_upper": 0.01}, "mask_upper"),
        ("deyo", {"patches": 33}, "patches"),
        ("moetta", {"frozen": 99}, "frozen"),
        ("clipartt", {"topk": 6}, "topk"),
        ("clipartt", {"template": "a photo"}, "template"),
        ("watt", {"templates": "wat"}, "watt"),
        ("watt", {"templates": ["a photo"]}, "templates"),
        ("batclip", {"templates": None}, "templates"),
        ("zero", {"augmix": 0.01}, "augmix"),
    ],
    ids=str,
)
def test_parameters_that_do_not_go_together(name: str, parameters: dict, named: str) -> None:
    """What a field says alone is a clause of the contract."""
    with pytest.raises((ValueError, TypeError, MemoryError), match=named):
        ramen.create(name, testing.small_classifier(), **parameters)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("clip", {}),
        ("watt", {}),
        ("clipot", {}),
        ("clipartt", {}),
        ("tpt", {}),
        ("batclip", {"towers": "both"}),
        ("rotta", {}),
        ("cotta", {}),
        ("roid", {}),
        ("zero", {"augmix": 3.0}),
    ],
    ids=str,
)
def test_a_method_that_needs_more_of_a_classifier_says_so(name: str, settings: dict) -> None:
    """Templates, a text encoder or how images were normalised."""
    vectors = torch.randn(3, 7, 16) if name == "clip" else torch.randn(3, 16)
    templates = None if name == "clip" else "ensemble"
    bare = ramen.ZeroShotClassifier(testing.small_tower(), vectors, 30.0, templates=templates)
    with pytest.raises((ValueError, MissingPartError), match=f"method '{name}'"):
        ramen.create(name, bare, **settings)
