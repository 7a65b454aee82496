"""What Ramen chooses: sizes for any number of classes and any budget, the step, the guard, the reasons."""

import json
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ramen
from ramen import testing
from ramen.memory import plan as memory_plan
from ramen.memory.codecs import CODECS
from ramen.memory.plan import MemoryPlan
from ramen.methods import _choices
from ramen.methods._choices import (
    capacity_for,
    choose_memory,
    choose_step,
    noise_like_photographs,
    sensitivity,
    topk_for,
)
from ramen.utils.checks import parse_bytes

VIT_B_16 = {"embedding_size": 512, "gradient_size": 39_936, "blocks": [768] * 52}


def stream(images: int, seed: int = 0) -> Tensor:
    return torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


# -- capacity, topk and codec -----------------------------------------------------------------------


@settings(max_examples=200)
@given(
    classes=st.integers(1, 100_000),
    budget=st.integers(2**20, 2**40),
    capacity=st.one_of(st.just("auto"), st.integers(1, 5000)),
    topk=st.one_of(st.just("auto"), st.integers(1, 100)),
)
def test_what_is_chosen_fits_the_budget(classes: int, budget: int, capacity, topk) -> None:
    def plan_for(size: int, codec: str) -> MemoryPlan:
        return MemoryPlan(classes, size, codec=codec, **VIT_B_16)

    if capacity != "auto" and topk != "auto" and topk > capacity:
        return  # refused before
    try:
        size, k, codec, why = choose_memory(plan_for, classes, capacity, topk, "auto", budget)
    except MemoryError:
        least = capacity if capacity != "auto" else 1 if topk == "auto" else topk
        assert sum(plan_for(least, "sign").max_bytes().values()) > budget
        return
    assert sum(plan_for(size, codec).max_bytes().values()) <= budget
    assert 1 <= k <= size
    assert size == capacity or capacity == "auto"
    assert k == topk or topk == "auto"
    given = {"capacity": capacity, "topk": topk, "codec": "auto"}
    assert set(why) == {name for name, value in given.items() if value == "auto"}


@pytest.mark.parametrize(
    ("classes", "capacity", "topk"), [(10, 7500, 50), (100, 750, 5), (1000, 75, 1), (345, 300, 10)]
)
def test_near_the_papers_capacities_and_not_above_its_topk(classes: int, capacity: int, topk: int) -> None:
    assert 0.7 * capacity <= capacity_for(classes) <= capacity
    assert 1 <= topk_for(classes) <= topk


def test_the_papers_table() -> None:
    known = {
        10: (7500, 50, 5.0),
        100: (750, 5, 5.0),
        345: (300, 10, 5.0),
        1000: (75, 1, 0.0),
        200: (375, 2, 5.0),
        5: (15_000, 100, 5.0),
    }
    for classes, row in known.items():
        found = ramen.paper_values(classes)
        assert (found["capacity"], found["topk"], found["beta"]) == row
        assert found["lr"] == 0.01
    with pytest.raises(ValueError, match="classes"):
        ramen.paper_values(0)


def test_the_papers_values_leave_nothing_of_ours() -> None:
    clf, images = testing.small_classifier(), stream(40)
    given = ramen.paper_values(clf.num_classes)
    paper, by_hand = (
        ramen.create(
            "ramen",
            clf,
            **{**given, "capacity": 20, "topk": 3}
            if all_of_it
            else {"capacity": 20, "topk": 3, "beta": 5.0, "lr": 0.01},
        )
        for all_of_it in (True, False)
    )
    assert set(paper.parameters.why) <= {"codec", "defaults"}
    for batch in images.split(20):
        assert torch.equal(paper.predict(batch).logits, by_hand.predict(batch).logits)


def test_chosen_sizes_never_grow_with_the_classes() -> None:
    counts = range(1, 3000)
    for choose in (capacity_for, topk_for):
        values = [choose(count) for count in counts]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("classes", [1, 2, 3, 1000])
def test_any_number_of_classes_works(classes: int) -> None:
    """A single class has nothing to adapt to; a thousand see two images each at most."""
    clf = testing.small_classifier()
    text = torch.randn(classes, clf.class_embeddings.shape[1], generator=torch.Generator().manual_seed(1))
    clf = ramen.ZeroShotClassifier(clf.encoder, text, 30.0)
    method = ramen.create("ramen", clf)
    for batch in stream(40).split(20):
        out = method.predict(batch)
        assert out.logits.isfinite().all()
    assert not out.fallback.any()
    assert (method.capacity, method.topk) == (capacity_for(classes), topk_for(classes))


def test_a_budget_lowers_the_codec_then_the_capacity() -> None:
    clf = testing.small_classifier()
    sizes = {}
    for budget in ("400 MiB", "20 MiB", "2 MiB", "200 KiB", "20 KiB"):
        method = ramen.create("ramen", clf, memory_budget=budget)
        assert method.memory_bytes() <= parse_bytes("budget", budget)
        sizes[budget] = method.codec, method.capacity
        assert method.topk <= method.capacity
    codecs = [codec for codec, _ in sizes.values()]
    capacities = [capacity for _, capacity in sizes.values()]
    assert codecs == sorted(codecs, key=CODECS.index)
    assert codecs[0] == "fp16"
    assert codecs[-1] == "sign"
    assert capacities == sorted(capacities, reverse=True)
    assert capacities[-1] < 100 < capacities[0]
    assert "the most that fits" in method.parameters.why["capacity"]
    with pytest.raises(MemoryError, match=r"memory_budget is 1000\b"):
        ramen.create("ramen", clf, memory_budget=1000)


def test_without_a_budget_half_of_the_free_memory_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: 10 * 2**20)
    method = ramen.create("ramen", testing.small_classifier())
    assert 2 * 2**20 < method.memory_bytes() <= 5 * 2**20


# -- the step ---------------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    """A norm layer whose weights may have any scale: the next layer takes it out again."""

    image_size = 8

    def __init__(self, scale: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(192, 16), nn.LayerNorm(16), nn.Linear(16, 6)
        with torch.no_grad():
            for layer in (self.first, self.last):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / 4)
                layer.bias.zero_()
            self.norm.weight.fill_(scale)
            self.last.weight.div_(scale)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.norm(self.first(images.flatten(1))))


def classifier_of(module: nn.Module, classes: int = 4, width: int = 6) -> ramen.ZeroShotClassifier:
    text = torch.randn(classes, width, generator=torch.Generator().manual_seed(2))
    return ramen.ZeroShotClassifier(module, text, 10.0)


def test_the_step_is_in_units_of_the_norm_weights() -> None:
    """The same function of images with norm weights of another size takes a step of that size."""
    steps = [choose_step(classifier_of(TwoLayers(scale)), (8, 8))[0] for scale in (0.1, 1.0, 10.0)]
    assert steps[0] == pytest.approx(steps[1] / 10, rel=0.02)
    assert steps[2] == pytest.approx(steps[1] * 10, rel=0.02)


def test_the_sensitivity_is_its_definition() -> None:
    """Against one backward pass per image through the module itself, and against steps that are taken."""
    module = TwoLayers(1.5)
    clf = classifier_of(module)
    images = noise_like_photographs(7, (8, 8))
    draws = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    rates, moved = [], []
    for image, draw in zip(images, draws, strict=True):
        z = nn.functional.normalize(module(image[None])[0], dim=0)
        along = draw - (draw @ z) * z.detach()
        along = (along / along.norm()).detach()
        gradients = torch.autograd.grad(along @ z, [module.norm.weight, module.norm.bias])
        rates.append(sum(g.abs().sum() for g in gradients).item())
        stepped = clf.encoder.base + 1e-4 * torch.cat(gradients).sign()
        moved.append(float(along @ (clf.encode(image[None], stepped)[0] - z.detach())) / 1e-4)
    assert sensitivity(clf, images) == pytest.approx(sorted(rates)[3], rel=1e-4)
    assert moved == pytest.approx(rates, rel=0.02)


def test_the_step_does_not_depend_on_the_classes() -> None:
    steps = {choose_step(classifier_of(TwoLayers(1.0), classes), (8, 8)) for classes in (1, 2, 50)}
    assert len(steps) == 1


def test_an_encoder_that_does_not_react_takes_the_papers_step() -> None:
    module = TwoLayers(1.0)
    nn.init.zeros_(module.last.weight)
    nn.init.ones_(module.last.bias)
    assert choose_step(classifier_of(module), (8, 8))[0] == _choices.UNKNOWN


def test_the_step_is_the_same_in_every_precision() -> None:
    steps = {choose_step(testing.small_classifier(dtype=d), (32, 32))[0] for d in ("float32", "float64")}
    assert len(steps) == 1


def test_noise_like_photographs() -> None:
    images = noise_like_photographs(50, (24, 40))
    assert images.shape == (50, 3, 24, 40)
    assert images.mean((1, 2, 3)).abs().max() < 1e-5
    assert (images.std((1, 2, 3), correction=0) - 1).abs().max() < 1e-5
    neighbours = (images[..., 1:] * images[..., :-1]).mean()
    assert neighbours > 0.6  # smooth, unlike white noise
    assert torch.equal(images, noise_like_photographs(50, (24, 40)))
    assert noise_like_photographs(2, (1, 1)).isfinite().all()


def test_a_step_that_depends_on_the_size_of_images_waits_for_them() -> None:
    module = TwoLayers(1.0)
    module.image_size = None
    clf = classifier_of(module)
    method = ramen.create("ramen", clf)
    assert method.lr == "auto"
    assert "first images" in method.parameters.why["lr"]
    known = ramen.create("ramen", classifier_of(TwoLayers(1.0)))
    images = torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    with pytest.raises(ValueError, match="images"):
        method.predict(images[0])
    assert method.lr == "auto"
    assert torch.equal(method.predict(images).logits, known.predict(images).logits)
    assert method.lr == known.lr
    method.reset()
    assert method.lr == "auto"


# -- weights and guard ------------------------------------------------------------------------------


def test_the_guard_mixes_probabilities() -> None:
    clf, images = testing.small_classifier(), stream(30)
    plain, half = (ramen.create("ramen", clf, guard=guard).predict(images) for guard in (0.0, 0.5))
    mean = (plain.logits.softmax(1) + plain.zero_shot_logits.softmax(1)) / 2
    torch.testing.assert_close(half.logits.softmax(1), mean)
    assert not torch.equal(plain.labels, half.labels)


@pytest.mark.parametrize(
    ("given", "guard"),
    [
        ({}, 0.4),
        ({"beta": 5.0}, 0.4),
        ({"lr": 0.01}, 0.4),
        ({"defaults": "steered"}, 0.2),
        ({"beta": 5.0, "lr": 0.01}, 0.0),
        ({"guard": 0.1}, 0.1),
    ],
)
def test_the_paper_has_no_guard(given: dict, guard: float) -> None:
    assert ramen.create("ramen", testing.small_classifier(), **given).guard == guard


def test_no_image_outweighs_the_others_by_far() -> None:
    method = ramen.create("ramen", testing.small_classifier())
    for batch in stream(200).split(50):
        out = method.predict(batch, return_support=True)
    weights = torch.where(out.support.valid, out.support.weights, math.nan)
    assert (weights.nan_to_num(0).amax(1) / weights.nan_to_num(9).amin(1)).max() <= math.exp(2) + 1e-4
    state = method.memory.state()
    lengths = method.memory.codec.decode(state["gradients"], state["scales"]).norm(dim=1)
    assert ((lengths[1:] - 1).abs() < 1e-3).all()  # the first row is spare


# -- what it may depend on --------------------------------------------------------------------------


def labels(method: ramen.Method, batches: Sequence[Tensor], **more: Tensor) -> Tensor:
    return torch.cat([method.predict(batch, **more).logits for batch in batches])


def test_nothing_depends_on_tags_or_on_the_future() -> None:
    clf = testing.small_classifier()
    batches = stream(120).split(20)
    whole = labels(ramen.create("ramen", clf), batches)
    assert torch.equal(whole[:60], labels(ramen.create("ramen", clf), batches[:3]))
    tagged = labels(ramen.create("ramen", clf), batches, tags=torch.arange(20))
    assert torch.equal(whole, tagged)
    changed = torch.cat([stream(120)[:110], stream(10, seed=9)])
    causal = [ramen.create("ramen", clf, visibility="causal") for _ in range(2)]
    first, second = (
        labels(m, images.split(40))[:110] for m, images in zip(causal, (stream(120), changed), strict=True)
    )
    torch.testing.assert_close(first, second)


# -- what is said of it -----------------------------------------------------------------------------


def test_parameters_say_what_was_chosen_and_why() -> None:
    method = ramen.create("ramen", testing.small_classifier(), topk=7)
    found = method.parameters
    assert found["topk"] == 7
    assert found["capacity"] == 15_000
    assert set(found.why) == {
        n for n, v in dict(found.items()).items() if method.info.defaults[n] == "auto"
    } - {"topk"}
    assert dict(found).keys() == method.info.defaults.keys()
    assert "topk=7\n" in str(found)
    assert "capacity=15000  (chosen: 75,000 images, for 5 classes)" in str(found)
    for name in ("topk", "beta", "lr", "guard"):
        assert f"{name}={getattr(method, name)}" in repr(method)
    assert ramen.create("tent", testing.small_classifier(), lr=0.5).parameters["lr"] == 0.5


# -- saved states -----------------------------------------------------------------------------------


def test_a_state_brings_its_capacity_and_codec_where_they_were_chosen() -> None:
    clf, images = testing.small_classifier(), stream(40)
    small = ramen.create("ramen", clf, memory_budget="200 KiB")
    small.predict(images[:20])
    state = small.state_dict()
    large = ramen.create("ramen", clf)
    large.predict(images[:10])
    large.load_state_dict(state)
    assert (large.capacity, large.codec) == (small.capacity, small.codec)
    assert torch.equal(large.predict(images[20:]).logits, small.predict(images[20:]).logits)
    assert large.parameters.why["codec"] == "as in the state that was loaded"
    with pytest.raises(ValueError, match=f"capacity is {small.capacity} there and 9 here"):
        ramen.create("ramen", clf, capacity=9).load_state_dict(state)


def test_a_state_that_cannot_be_loaded_changes_nothing() -> None:
    clf, images = testing.small_classifier(), stream(40)
    small = ramen.create("ramen", clf, memory_budget="200 KiB", seed=1)
    small.predict(images[:20])
    method, twin = ramen.create("ramen", clf), ramen.create("ramen", clf)
    for one in (method, twin):
        one.predict(images[:20])
    with pytest.raises(ValueError, match="seed is 1 there and 0 here"):
        method.load_state_dict(small.state_dict())
    assert (method.capacity, method.codec, method.chosen) == (twin.capacity, twin.codec, twin.chosen)
    assert torch.equal(method.predict(images[20:]).logits, twin.predict(images[20:]).logits)


def test_a_state_brings_its_defaults_where_they_were_chosen() -> None:
    clf, images = testing.small_classifier(), stream(60)
    steered, plain, other = (
        ramen.create("ramen", clf, **more) for more in ({"defaults": "steered"}, {}, {"seed": 1})
    )
    steered.predict(images[:20])
    state = steered.state_dict()
    with pytest.raises(ValueError, match="seed"):
        other.load_state_dict(state)
    assert (other.defaults, other.gradients, other.guard) == ("0.2", "unit", 0.4)
    plain.load_state_dict(state)
    assert plain.parameters.why["defaults"] == "as in the state that was loaded"
    for name in ("gradients", "certainty", "step_form", "lr", "guard"):
        assert getattr(plain, name) == getattr(steered, name)
    assert torch.equal(plain.predict(images[20:40]).logits, steered.predict(images[20:40]).logits)
    with pytest.raises(ValueError, match=r"defaults is 'steered' there"):
        ramen.create("ramen", clf, defaults="0.2").load_state_dict(state)


def test_a_state_of_0_2_continues_as_it_was() -> None:
    clf, images = testing.small_classifier(), stream(60)
    old, now = (ramen.create("ramen", clf) for _ in range(2))
    old.predict(images[:20])
    before = as_saved_by_0_2(old.state_dict())
    now.load_state_dict(before)
    assert torch.equal(now.predict(images[20:40]).logits, old.predict(images[20:40]).logits)
    with pytest.raises(ValueError, match=r"defaults is '0\.2' there"):
        ramen.create("ramen", clf, defaults="steered").load_state_dict(before)


def as_saved_by_0_2(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same state with the header and the contents that it had then."""
    header = json.loads(bytes(state["header"].tolist()))
    saved = header["parameters"]
    saved["unit_gradients"] = saved.pop("gradients") == "unit"
    for name in ("stores", "step_form", "defaults"):
        del saved[name]
    kept = {name: value for name, value in state.items() if not name.startswith("content.step_")}
    return {**kept, "header": torch.tensor(list(json.dumps(header).encode()), dtype=torch.uint8)}
