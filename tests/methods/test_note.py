"""NOTE against a mutable model, an optimizer's step and a Python list as memory."""

import pytest
import torch
from torch import Tensor, nn

import ramen
from ramen import ZeroShotClassifier, testing
from ramen.utils.pair_scores import pair_scores
from tests.oracles.mutable_model import CLASSES, MutableModel, stream, use_batch_statistics


class Oracle(MutableModel):
    """Two draws an image, decided by the seed and its number; items are replaced where they lie."""

    def __init__(self, kind: str, lr: float, memory: int, seed: int) -> None:
        super().__init__(kind)
        self.lr, self.capacity, self.seed = lr, memory, seed
        self.memory: list[tuple[Tensor, int]] = []
        self.counts = [0] * CLASSES
        self.dropped = self.balanced = 0

    def insert(self, image: Tensor, label: int) -> None:
        number = torch.tensor([sum(self.counts)])
        first, second = pair_scores(self.seed, number, torch.tensor([0, 1]))[0].tolist()
        self.counts[label] += 1
        if len(self.memory) < self.capacity:
            self.memory.append((image, label))
            return
        held = [sum(1 for _, other in self.memory if other == c) for c in range(CLASSES)]
        largest = [c for c in range(CLASSES) if held[c] == max(held)]
        if label not in largest:
            victim = largest[int(first * len(largest))]
            self.balanced += 1
        elif first < held[label] / self.counts[label]:
            victim = label
        else:
            self.dropped += 1
            return
        places = [i for i, (_, other) in enumerate(self.memory) if other == victim]
        self.memory[places[int(second * len(places))]] = (image, label)

    def predict(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.logits(images)
        for image, label in zip(images, logits.argmax(1).tolist(), strict=True):
            self.insert(image, label)
        self.zero_grad()
        self.entropies(torch.stack([image for image, _ in self.memory])).mean().backward()
        self.move(self.lr)
        return logits


@pytest.mark.parametrize(("memory", "seed"), [(8, 0), (3, 1), (200, 0)])
def test_equals_a_mutable_model(tower_kind: str, memory: int, seed: int) -> None:
    oracle = Oracle(tower_kind, 5e-3, memory, seed)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("note", clf, lr=5e-3, memory=memory, seed=seed)
    for images in stream(22):
        out = method.predict(images)
        torch.testing.assert_close(out.logits, oracle.predict(images), rtol=0, atol=1e-9)
    assert not torch.allclose(out.logits, out.zero_shot_logits, atol=0.1)
    if memory < 100:  # all the reservoir's rules have been used
        assert oracle.dropped > 3
        assert oracle.balanced > 3
    assert method.content()["labels"].tolist() == [label for _, label in oracle.memory]
    assert torch.equal(method.content()["images"], torch.stack([image for image, _ in oracle.memory]))
    assert method.content()["seen"].tolist() == oracle.counts


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 2e-3), ("adam", 2e-3)])
def test_equals_a_mutable_model_with_another_optimizer(tower_kind: str, optimizer: str, lr: float) -> None:
    oracle = Oracle(tower_kind, lr, 8, 0)
    oracle.use_optimizer(optimizer, lr)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("note", clf, lr=lr, memory=8, optimizer=optimizer)
    for images in stream(20):
        out = method.predict(images)
        torch.testing.assert_close(out.logits, oracle.predict(images), rtol=0, atol=1e-8)
    assert not torch.allclose(out.logits, out.zero_shot_logits, atol=0.1)


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    """Of the batch to predict it, of the memory to train on it.

    Many images: where all of a few are on one side of a ReLU, gradients are zero but for rounding.
    """
    oracle = Oracle("resnet", 5e-3, 20, 0)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    method = ramen.create("note", clf, lr=5e-3, memory=20, statistics="batch")
    for images in stream(22, 16):
        out = method.predict(images)
        torch.testing.assert_close(out.logits, oracle.predict(images), rtol=0, atol=1e-8)
    assert not torch.allclose(out.logits, out.zero_shot_logits, atol=0.1)
    assert torch.equal(method.content()["images"], torch.stack([image for image, _ in oracle.memory]))


def test_a_memory_that_is_not_yet_full_is_trained_on_as_it_is() -> None:
    """The first step is the entropy step on the first batch: that of tent."""
    clf = testing.small_classifier(dtype="float64")
    note, tent = ramen.create("note", clf, lr=1e-2), ramen.create("tent", clf, lr=1e-2)
    first = stream(1)[0]
    note.predict(first), tent.predict(first)
    torch.testing.assert_close(note.content()["affine"], tent.content()["affine"], rtol=0, atol=1e-12)
    assert len(note.content()["images"]) == 5


def test_the_seed_decides_what_is_kept() -> None:
    clf, batches = testing.small_classifier(), [batch.float() for batch in stream(8)]
    kept = []
    for seed in (0, 0, 1):
        method = ramen.create("note", clf, memory=6, seed=seed)
        for batch in batches:
            method.predict(batch)
        kept.append(method.content()["images"])
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])


def test_what_is_kept_does_not_depend_on_how_the_stream_is_cut() -> None:
    clf, images = testing.small_classifier(dtype="float64"), torch.cat(stream(8))
    contents = []
    for size in (1, 7, 40):
        method = ramen.create("note", clf, lr=0.0, memory=6)
        for batch in images.split(size):
            method.predict(batch)
        contents.append(method.content())
    for other in contents[1:]:
        assert torch.equal(other["images"], contents[0]["images"])
        assert torch.equal(other["seen"], contents[0]["seen"])


@pytest.mark.parametrize("bad", [torch.nan, 1e38])
def test_a_refused_image_leaves_no_trace(bad: float) -> None:
    clf = testing.small_classifier()
    with_bad, without = (ramen.create("note", clf, lr=1e-2, memory=7) for _ in range(2))
    for images in (batch.float() for batch in stream(6)):
        spoiled = torch.cat([images[:2], torch.full_like(images[:1], bad), images[2:]])
        a, b = with_bad.predict(spoiled), without.predict(images)
        assert a.fallback.tolist() == [False, False, True, False, False, False]
        torch.testing.assert_close(a.logits[[0, 1, 3, 4, 5]], b.logits, rtol=0, atol=1e-3)
    for name, tensor in without.content().items():
        torch.testing.assert_close(with_bad.content()[name], tensor)


def test_a_batch_without_a_usable_image_changes_nothing() -> None:
    method = ramen.create("note", testing.small_classifier(), lr=1e-2)
    method.predict(stream(1)[0].float())
    before = method.content()
    method.predict(torch.full((3, 3, 32, 32), torch.nan))
    assert all(torch.equal(before[name], tensor) for name, tensor in method.content().items())


@pytest.mark.parametrize("memory", [5, 10])
def test_passes_an_image(memory: int) -> None:
    """Two forwards and one backward with a memory of the batch's size; a larger one costs its size."""
    counter = testing.CountingClassifier(testing.small_classifier())
    method = ramen.create("note", counter, memory=memory)
    for images in stream(6):
        method.predict(images.float())
    trained = [min(5 * (batch + 1), memory) for batch in range(6)]
    assert counter.forwards == [n for size in trained for n in (5, size)]
    assert counter.backwards == trained


def test_half_precision_images_are_stored_in_the_encoders_type() -> None:
    method = ramen.create("note", testing.small_classifier(dtype="bfloat16"), memory=4)
    method.predict(stream(1)[0].float())
    assert method.content()["images"].dtype == torch.bfloat16
    assert method.content()["affine"].dtype == torch.float32


class AnySize(nn.Module):
    """An encoder that states no image size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu().mean((2, 3))


def test_an_encoder_without_an_image_size() -> None:
    torch.manual_seed(0)
    clf = ZeroShotClassifier(AnySize(), torch.randn(3, 8))
    method = ramen.create("note", clf, memory=4)
    affine = 16 * 4
    assert method.memory_bytes() == affine + 8 * (4 + 3)
    fresh = method.state_dict()
    method.predict(torch.randn(5, 3, 9, 9))
    assert method.memory_bytes() == affine + 8 * (4 + 3) + 4 * 3 * 81 * 4
    before = method.content()
    with pytest.raises(ValueError, match=r"images must have the size .* \(9, 9\), got \(8, 9\)"):
        method.predict(torch.randn(5, 3, 8, 9))
    assert method.images_seen == 5
    assert all(torch.equal(before[name], tensor) for name, tensor in method.content().items())
    resumed = ramen.create("note", clf, memory=4)
    resumed.load_state_dict(method.state_dict())
    assert torch.equal(resumed.content()["images"], before["images"])
    method.load_state_dict(fresh)
    method.predict(torch.randn(2, 3, 8, 9))  # an empty memory takes any size


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    clf = testing.small_classifier()
    method = ramen.create("note", clf, memory=4, lr=1e-2)
    method.predict(stream(1)[0].float())
    good = method.state_dict()
    for name, value in {
        "affine": torch.full_like(good["content.affine"], torch.nan),
        "images": good["content.images"][:2],
        "labels": good["content.labels"] + CLASSES,
        "seen": torch.zeros_like(good["content.seen"]),
    }.items():
        with pytest.raises(ValueError, match=r"in the state must be|must be"):
            method.load_state_dict({**good, f"content.{name}": value})
    with pytest.raises(ValueError, match="the memory's state must hold images, labels, seen, got"):
        method.load_state_dict({k: v for k, v in good.items() if k != "content.seen"})
    assert all(torch.equal(good[name], tensor) for name, tensor in method.state_dict().items())
    with pytest.raises(ValueError, match="memory is 4 there and 5 here"):
        ramen.create("note", clf, memory=5).load_state_dict(good)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"memory": 0}, "memory must be at least 1, got 0"), ({"lr": -1.0}, "lr must be finite and at least 0")],
)
def test_bad_parameters(parameters: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ramen.create("note", testing.small_classifier(), **parameters)


def test_the_record() -> None:
    record = ramen.describe("note")
    expected = {
        "lr": 2e-5,
        "memory": 100,
        "statistics": "source",
        "optimizer": "sign",
        "momentum": 0.9,
        "seed": 0,
    }
    assert record.defaults == expected
    assert "2 forward, 1 backward, with memory equal to the batch size" in str(record)
