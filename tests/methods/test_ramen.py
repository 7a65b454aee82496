"""Ramen against its definition: ordinary modules, stored images, recomputed gradients, plain loops."""

import math
import statistics
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ramen
from ramen import testing
from ramen.memory.retrieval import Memory
from tests.helpers.slow_tests import full

CLASSES, SCALE = 5, 30.0
PAPER = {"beta": 5.0, "lr": 1e-2}


def stream(images: int = 60, seed: int = 0) -> Tensor:
    return torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


class Oracle:
    """The paper's five steps for one image at a time, with no cache: gradients are recomputed."""

    def __init__(self, kind: str, capacity: int, topk: int, beta: float, lr: float) -> None:
        self.model = testing.small_tower(kind).double().eval()
        self.text = testing.small_classifier(kind, dtype="float64").class_embeddings
        self.norms = [m for m in self.model.modules() if isinstance(m, nn.LayerNorm | nn.BatchNorm2d)]
        self.capacity, self.topk, self.beta, self.lr = capacity, topk, beta, lr
        self.queues: list[list[Tensor]] = [[] for _ in range(CLASSES)]

    def parameters(self) -> list[nn.Parameter]:
        return [p for m in self.norms for p in (m.weight, m.bias)]

    def embed(self, image: Tensor) -> Tensor:
        return nn.functional.normalize(self.model(image[None])[0], dim=0)

    def entropy(self, image: Tensor) -> Tensor:
        p = (SCALE * self.text @ self.embed(image)).softmax(0)
        return -(p * p.log()).sum()

    def store(self, image: Tensor) -> None:
        queue = self.queues[int((self.text @ self.embed(image)).argmax())]
        queue.append(image)
        del queue[: -self.capacity]

    def predict(self, image: Tensor) -> tuple[Tensor, bool]:
        """Logits, and whether fp32 decides as fp64 does: no tie in the retrieval, no sum that cancels."""
        z = self.embed(image).detach()
        entries: list[Entry] = []
        clear = True
        for queue in self.queues:
            with torch.no_grad():
                similarity = [float(z @ self.embed(other)) for other in queue]
            ranked = sorted(range(len(queue)), key=lambda i: -similarity[i])
            if len(ranked) > self.topk:
                clear &= similarity[ranked[self.topk - 1]] - similarity[ranked[self.topk]] > 1e-6
            for other in (queue[i] for i in ranked[: self.topk]):
                loss = self.entropy(other)
                distance = float((z - self.embed(other).detach()).norm())
                sure = float((SCALE * self.text @ self.embed(other)).detach().softmax(0).max())
                gradient = torch.autograd.grad(loss, self.parameters())
                entries.append(Entry(loss.item(), distance, sure, gradient))
        total = [torch.zeros_like(p) for p in self.parameters()]
        sizes = [torch.zeros_like(p) for p in self.parameters()]
        for alpha, entry in zip(self.weights(entries), entries, strict=True):
            for t, s, g in zip(total, sizes, entry.gradient, strict=True):
                t += alpha * g
                s += alpha * g.abs()
        clear &= all(((t == 0) | (t.abs() > 1e-5 * s)).all() for t, s in zip(total, sizes, strict=True))
        saved = [p.data.clone() for p in self.parameters()]
        for p, t, factor in zip(self.parameters(), total, self.factors(), strict=True):
            p.data -= self.lr * factor * t.sign()
        logits = SCALE * self.text @ self.embed(image).detach()
        for p, s in zip(self.parameters(), saved, strict=True):
            p.data = s
        return logits, clear

    def weights(self, entries: list["Entry"]) -> list[float]:
        return [math.exp(-entry.entropy) * math.exp(-self.beta * entry.distance) for entry in entries]

    def factors(self) -> list[float]:
        """How much further than ``lr`` a step moves each parameter."""
        return [1.0] * len(self.parameters())


@dataclass
class Entry:
    entropy: float
    distance: float
    probability: float
    gradient: tuple[Tensor, ...]


class OwnUnitsOracle(Oracle):
    """What ``beta="auto"`` and a guard add, from their description."""

    def __init__(self, kind: str, capacity: int, topk: int, lr: float, guard: float) -> None:
        super().__init__(kind, capacity, topk, beta=math.nan, lr=lr)
        self.guard = guard

    def weights(self, entries: list[Entry]) -> list[float]:
        distances = [entry.distance for entry in entries]
        mean, spread = statistics.fmean(distances), max(statistics.pstdev(distances), 1e-4)
        found = []
        for entry in entries:
            length = math.sqrt(sum(float(g.square().sum()) for g in entry.gradient))
            apart = min(1.0, max(-1.0, (entry.distance - mean) / spread))
            found.append(math.exp(-entry.entropy / math.log(CLASSES)) * math.exp(-apart / 2) / length)
        return found

    def predict(self, image: Tensor) -> tuple[Tensor, bool]:
        adapted, clear = super().predict(image)
        zero_shot = SCALE * self.text @ self.embed(image).detach()
        mean = self.guard * zero_shot.softmax(0) + (1 - self.guard) * adapted.softmax(0)
        level = self.guard * zero_shot.logsumexp(0) + (1 - self.guard) * adapted.logsumexp(0)
        return mean.log() + level, clear


class PartsOracle(Oracle):
    """The parameters that the paper does not have, from their description."""

    def __init__(self, kind: str, capacity: int, topk: int, beta: float, lr: float, **parts: str) -> None:
        super().__init__(kind, capacity, topk, beta, lr)
        self.parts = parts

    def weights(self, entries: list[Entry]) -> list[float]:
        power = {"raw": 0.0, "root": 0.5, "unit": 1.0}[self.parts["gradients"]]
        found = []
        for entry in entries:
            length = math.sqrt(sum(float(g.square().sum()) for g in entry.gradient))
            certainty = {
                "entropy": math.exp(-entry.entropy),
                "scaled": math.exp(-entry.entropy / math.log(CLASSES)),
                "probability": entry.probability,
            }[self.parts["certainty"]]
            found.append(certainty * math.exp(-self.beta * entry.distance) / length**power)
        return found

    def factors(self) -> list[float]:
        if self.parts["step_form"] == "weight":
            return [factor for _ in self.norms for factor in (1.0, 0.3)]
        sizes = [float(m.weight.square().mean().sqrt()) for m in self.norms]
        return [size / statistics.fmean(sizes) for size in sizes for _ in range(2)]


PARTS = {
    "roots and probabilities": {"gradients": "root", "certainty": "probability", "step_form": "layer"},
    "unit length and biases": {"gradients": "unit", "certainty": "scaled", "step_form": "weight"},
    "layers alone": {"gradients": "raw", "certainty": "entropy", "step_form": "layer"},
}


@pytest.mark.parametrize("visibility", ["batch", "causal"])
@pytest.mark.parametrize("rule", ["paper", "own units", *PARTS])
def test_equals_recomputing_the_support_sets_gradients(tower_kind: str, visibility: str, rule: str) -> None:
    """The cached update is the update from the images themselves, over many images and full queues.

    The memory holds fp32: images for which its rounding decides a tie or the sign of a vanishing sum, a few
    in a hundred, are left out.
    """
    settings: dict[str, Any]
    oracle: Oracle
    if rule == "paper":
        settings = {"capacity": full(6, 4), "topk": 3, "beta": 5.0, "lr": 1e-2}
        oracle = Oracle(tower_kind, **settings)
    elif rule in PARTS:
        settings = {"capacity": full(6, 4), "topk": 3, "beta": 2.0, "lr": 1e-2, **PARTS[rule]}
        oracle = PartsOracle(tower_kind, **settings)
    else:
        settings = {"capacity": full(6, 4), "topk": 3, "lr": 2e-2, "guard": 0.3}
        oracle = OwnUnitsOracle(tower_kind, **settings)
    method = ramen.create(
        "ramen",
        testing.small_classifier(tower_kind, dtype="float64"),
        codec="fp32",
        visibility=visibility,
        **settings,
    )
    errors = []
    for batch in stream(full(50, 30)).double().split(10):
        logits = method.predict(batch).logits
        if visibility == "batch":
            for image in batch:
                oracle.store(image)
        for image, got in zip(batch, logits, strict=True):
            if visibility == "causal":
                oracle.store(image)
            expected, clear = oracle.predict(image)
            if clear:
                errors.append((expected - got).abs().max().item())
    assert len(errors) > full(35, 20)
    assert max(errors) < 1e-9, max(errors)


def test_support_says_which_entries_were_used() -> None:
    clf = testing.small_classifier()
    method = ramen.create("ramen", clf, capacity=20, topk=2, **PAPER)
    images = stream(40)
    tags = torch.arange(40) * 10
    for batch, tag in zip(images.split(10), tags.split(10), strict=True):
        out = method.predict(batch, tags=tag, return_support=True)
    support = out.support
    assert support.weights.shape == (10, CLASSES * 2)
    assert torch.equal(support.tags[support.valid], support.numbers[support.valid] * 10)
    assert (support.weights[~support.valid] == 0).all()
    z = clf.encode(images)
    logits = clf.logits(z)
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    for query in range(10):
        used = support.numbers[query][support.valid[query]]
        assert torch.equal(support.queues[query][support.valid[query]], logits[used].argmax(1))
        distances = (z[30 + query] - z[used]).norm(dim=1)
        torch.testing.assert_close(
            support.distances[query][support.valid[query]], distances, atol=2e-3, rtol=0
        )
        expected = torch.exp(-entropies[used] - 5 * distances)
        torch.testing.assert_close(support.weights[query][support.valid[query]], expected, rtol=2e-2, atol=0)
        assert 30 + query in used.tolist()  # an image is in its own support set


# -- the same answers at every batch size -----------------------------------------------------------


def run(method: ramen.Method, images: Tensor, batch: int) -> Tensor:
    return torch.cat([method.predict(part).logits for part in images.split(batch)])


@pytest.mark.parametrize("codec", ["fp16", "fp32", "sign"])
@pytest.mark.parametrize("given", [{}, PAPER], ids=["chosen", "paper"])
def test_causal_answers_do_not_depend_on_the_batch_size(tower_kind: str, codec: str, given: dict) -> None:
    images = stream(full(200, 60))
    clf = testing.small_classifier(tower_kind)
    settings = {"capacity": 7, "topk": 3, "visibility": "causal", "codec": codec, **given}
    logits = [run(ramen.create("ramen", clf, **settings), images, batch) for batch in (1, 7, full(100, 40))]
    for other in logits[1:]:
        assert torch.equal(other.argmax(1), logits[0].argmax(1))
        # the rest: a ReLU that opens or not by the last bit, which the order of sums in a batch decides;
        # at unit length, small gradients count as much as others, and so do their last bits
        close = (other - logits[0]).abs().amax(1) < 1e-3
        assert close.float().mean() > (0.93 if given else 0.85)


def test_causal_answers_do_not_depend_on_the_batch_size_for_random_entries_either() -> None:
    images, clf = stream(100), testing.small_classifier()
    settings = {"capacity": 7, "topk": 3, "visibility": "causal", "consistency": False}
    logits = [run(ramen.create("ramen", clf, **settings), images, batch) for batch in (1, 7, 100)]
    assert torch.equal(logits[0].argmax(1), logits[1].argmax(1))
    assert torch.equal(logits[0].argmax(1), logits[2].argmax(1))


def test_batch_and_causal_agree_for_batches_of_one() -> None:
    images, clf = stream(60), testing.small_classifier()
    a, b = (
        run(ramen.create("ramen", clf, capacity=5, topk=2, visibility=v, codec="fp32"), images, 1)
        for v in ("batch", "causal")
    )
    assert torch.equal(a.argmax(1), b.argmax(1))
    assert (a - b).abs().max() < 1e-2


# -- the switches -----------------------------------------------------------------------------------


def support_of(images: Tensor, **parameters: object) -> tuple[ramen.Prediction, ramen.Method]:
    method = ramen.create("ramen", testing.small_classifier(), **parameters)
    for batch in images.split(20):
        out = method.predict(batch, return_support=True)
    return out, method


def test_weights_switches() -> None:
    images = stream(60)
    shared = {"capacity": 10, "topk": 3, **PAPER}
    both, _ = support_of(images, **shared)
    similarity, _ = support_of(images, **shared, entropy_weight=False)
    entropy, _ = support_of(images, **shared, similarity_weight=False)
    none, _ = support_of(images, **shared, entropy_weight=False, similarity_weight=False)
    flat, _ = support_of(images, **{**shared, "beta": 0}, entropy_weight=False)
    valid = both.support.valid
    torch.testing.assert_close(both.support.weights, similarity.support.weights * entropy.support.weights)
    assert (none.support.weights[valid] == 1).all()
    assert torch.equal(none.logits, flat.logits)
    torch.testing.assert_close(
        similarity.support.weights[valid], torch.exp(-5 * both.support.distances)[valid]
    )


def test_without_balance_there_is_one_queue() -> None:
    images = stream(60)
    out, method = support_of(images, balance=False, capacity=3, topk=2)
    assert out.support.weights.shape == (20, CLASSES * 2)
    assert (out.support.queues == 0).all()
    # one first-in-first-out queue of C*K = 15: the last 15 images, whatever their class
    held = out.support.numbers[out.support.valid].unique()
    assert held.min() >= 45
    assert len(method.memory) == 15
    z = testing.small_classifier().encode(images)
    nearest = (z[59] @ z[45:].T).topk(10).indices + 45
    assert set(out.support.numbers[19].tolist()) == set(nearest.tolist())


def test_without_consistency_entries_are_random_and_weighted_by_entropy_alone() -> None:
    images = stream(60)
    out, _ = support_of(images, consistency=False, capacity=10, topk=3, seed=1, **PAPER)
    again, _ = support_of(images, consistency=False, capacity=10, topk=3, seed=1)
    other, _ = support_of(images, consistency=False, capacity=10, topk=3, seed=2)
    nearest, _ = support_of(images, capacity=10, topk=3)
    assert torch.equal(out.support.numbers, again.support.numbers)
    assert not torch.equal(out.support.numbers, other.support.numbers)
    assert not torch.equal(out.support.numbers.sort(1).values, nearest.support.numbers.sort(1).values)
    # drawn for each query on its own, balanced over the classes
    assert not torch.equal(out.support.numbers[0], out.support.numbers[1])
    for label in range(CLASSES):
        assert (out.support.valid & (out.support.queues == label)).sum(1).max() <= 3
    logits = testing.small_classifier().logits(testing.small_classifier().encode(images))
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    valid = out.support.valid
    expected = torch.exp(-entropies)[out.support.numbers[valid]]
    torch.testing.assert_close(out.support.weights[valid], expected, rtol=1e-3, atol=1e-5)


def test_without_both() -> None:
    out, _ = support_of(stream(60), balance=False, consistency=False, capacity=3, topk=2)
    assert (out.support.queues == 0).all()
    assert out.support.valid.all()
    assert all(len(row.unique()) == 10 for row in out.support.numbers)


@pytest.mark.parametrize("placement", ["cpu", "split"])
def test_placements_give_the_same_answers(placement: str) -> None:
    images, clf = stream(60), testing.small_classifier()
    expected = run(ramen.create("ramen", clf, capacity=5, topk=2), images, 20)
    assert torch.equal(
        run(ramen.create("ramen", clf, capacity=5, topk=2, placement=placement), images, 20), expected
    )


def test_exact_and_published_order_agree_at_the_start() -> None:
    images, clf = stream(100), testing.small_classifier()
    a, b = (
        run(ramen.create("ramen", clf, capacity=4, topk=2, fifo=f), images, 20) for f in ("exact", "float16")
    )
    assert torch.equal(a, b)


def test_a_zero_step_is_zero_shot() -> None:
    out = ramen.create("ramen", testing.small_classifier(), lr=0.0).predict(stream(8))
    torch.testing.assert_close(out.logits, out.zero_shot_logits, atol=1e-4, rtol=0)


def test_half_precision_encoders_adapt_alike() -> None:
    images = stream(80)
    full, half = (
        run(ramen.create("ramen", testing.small_classifier(dtype=d), capacity=9, topk=3), images, 20)
        for d in ("float32", "float16")
    )
    assert (full.argmax(1) == half.argmax(1)).float().mean() > 0.95


def test_a_packed_memory_steps_along_what_it_stores() -> None:
    """The answer from packed gradients is that from the same gradients, unpacked, in fp32."""
    images, clf = stream(60), testing.small_classifier()
    packed, plain = (
        ramen.create("ramen", clf, capacity=9, topk=3, codec=c, visibility="causal") for c in ("sign", "fp32")
    )
    plain.memory.stage = lambda queues, embeddings, gradients, *rest, **options: Memory.stage(
        plain.memory, queues, embeddings, rounded(gradients), *rest, **options
    )

    def rounded(gradients: Tensor) -> Tensor:
        form = packed.memory.codec
        return form.decode(*form.encode(gradients))

    a, b = run(packed, images, 20), run(plain, images, 20)
    assert (a.argmax(1) == b.argmax(1)).float().mean() > 0.95
    assert packed.memory_bytes() < 0.5 * plain.memory_bytes()
    # every layer's parameter has a scale of its own
    assert packed.memory.codec.scale_width == len(clf.encoder.layout)


# -- what must not happen ---------------------------------------------------------------------------


def test_a_nan_image_leaves_no_trace_in_the_memory() -> None:
    clf, images = testing.small_classifier(), stream(20)
    spoiled = images.clone()
    spoiled[[3, 11]] = torch.nan
    kept = [i for i in range(20) if i not in (3, 11)]
    method, clean = ramen.create("ramen", clf), ramen.create("ramen", clf)
    out = method.predict(spoiled, tags=torch.arange(20))
    expected = clean.predict(images[kept], tags=torch.tensor(kept))
    torch.testing.assert_close(out.logits[kept], expected.logits, atol=1e-4, rtol=0)
    assert method.images_refused == 2
    assert len(method.memory) == 18
    state, clean_state = method.state_dict(), clean.state_dict()
    # rows lie in the order of arrival behind the spare row
    torch.testing.assert_close(state["content.gradients"][1:], clean_state["content.gradients"][1:])
    assert torch.equal(state["content.tags"][1:], clean_state["content.tags"][1:])


def test_memory_bytes_is_reached_and_not_passed() -> None:
    clf = testing.small_classifier()
    method = ramen.create("ramen", clf, capacity=2, topk=1)
    before = method.memory_bytes()
    for batch in stream(400).split(100):
        method.predict(batch)
    labels = clf.logits(clf.encode(stream(400))).argmax(1)
    assert len(method.memory) == labels.bincount(minlength=CLASSES).clamp_max(2).sum()
    assert method.memory.allocated_bytes() <= method.memory_bytes() == before
    rows, width, size = CLASSES * 2, 16, len(clf.encoder.base)
    assert method.memory_bytes() >= rows * (width + size) * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 4}, "it has 4 classes, this classifier 5"),
        ({"seed": 1}, "the encoder's weights are [0-9a-f]{12}... there, [0-9a-f]{12}... here"),
        ({"dtype": "float64"}, "the encoder's weights are"),
    ],
)
def test_states_of_other_models_are_refused(change: dict, message: str) -> None:
    state = ramen.create("ramen", testing.small_classifier(**change)).state_dict()
    with pytest.raises(ValueError, match=message):
        ramen.create("ramen", testing.small_classifier()).load_state_dict(state)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"content.seen": torch.tensor([1, 2])}, "seen"),
        ({"images_seen": torch.tensor(-1)}, "images_seen"),
        ({"images_refused": 3}, "images_refused"),
        ({"class_embeddings": None}, "class embeddings"),
        ({"header": 7}, "header"),
        *(
            ({"header": torch.tensor(list(text), dtype=torch.uint8)}, "header")
            for text in (b"\xff\x00", b"[1, 2]", b'{"version": 1, "method": "ramen"}', b"7")
        ),
    ],
)
def test_a_damaged_state_changes_nothing(damage: dict, message: str) -> None:
    clf = testing.small_classifier()
    method = ramen.create("ramen", clf, capacity=6)
    run(method, stream(40), 10)
    before = method.state_dict()
    other = ramen.create("ramen", clf, capacity=6)
    run(other, stream(30, seed=1), 10)
    with pytest.raises(ValueError, match=message):
        method.load_state_dict({**other.state_dict(), **damage})
    assert all(torch.equal(before[name], value) for name, value in method.state_dict().items())


def test_states_of_other_templates_are_refused() -> None:
    state = ramen.create("ramen", testing.small_classifier()).state_dict()
    clf = testing.small_classifier()
    other = ramen.ZeroShotClassifier(
        testing.small_tower(), clf.template_embeddings[:, 0], clf.logit_scale, classes=clf.classes
    )
    with pytest.raises(
        ValueError, match=r"the class embeddings are not the same \(templates or text encoder\)"
    ):
        ramen.create("ramen", other).load_state_dict(state)
    state["class_embeddings"] += 1e-5  # another device's rounding
    ramen.create("ramen", clf).load_state_dict(state)
