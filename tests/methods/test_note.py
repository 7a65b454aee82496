"""NOTE against a mutable model, an optimizer's step and a Python list as memory."""

import pytest
import torch
from torch import Tensor, nn

import ramen
from ramen import ZeroShotClassifier, testing
from ramen.utils.numerics import pair_scores
from tests.oracles.image_lists import BalancedLists
from tests.oracles.mutable_model import CLASSES, MutableModel, stream, use_batch_statistics


class Oracle(MutableModel):
    """Two draws an image, decided by the seed and its number; items are replaced where they are."""

    def __init__(self, kind: str, lr: float, memory: int, seed: int) -> None:
        super().__init__(kind)
        self.lr, self.seed, self.lists = lr, seed, BalancedLists(memory, CLASSES)
        self.memory: dict[int, tuple[Tensor, int]] = {}  # by their slots
        self.dropped = self.balanced = 0

    def insert(self, image: Tensor, label: int) -> None:
        number = torch.tensor([sum(self.lists.counts)])
        slot = self.lists.insert(label, pair_scores(self.seed, number, torch.tensor([0, 1]))[0].tolist())
        self.dropped += slot is None
        self.balanced += slot in self.memory and self.memory[slot][1] != label
        if slot is not None:
            self.memory[slot] = image, label

    def images(self) -> Tensor:
        return torch.stack([image for image, _ in self.memory.values()])

    def predict(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.logits(images)
        for image, label in zip(images, logits.argmax(1).tolist(), strict=True):
            self.insert(image, label)
        self.zero_grad()
        self.entropies(self.images()).mean().backward()
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
    assert method.state.content()["labels"].tolist() == [label for _, label in oracle.memory.values()]
    assert torch.equal(method.state.content()["images"], oracle.images())
    assert method.state.content()["seen"].tolist() == oracle.lists.counts


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
    assert torch.equal(method.state.content()["images"], oracle.images())


def test_a_memory_that_is_not_yet_full_is_trained_on_as_it_is() -> None:
    """The first step is the entropy step on the first batch: that of tent."""
    clf = testing.small_classifier(dtype="float64")
    note, tent = ramen.create("note", clf, lr=1e-2), ramen.create("tent", clf, lr=1e-2)
    first = stream(1)[0]
    note.predict(first), tent.predict(first)
    torch.testing.assert_close(
        note.state.content()["affine"], tent.state.content()["affine"], rtol=0, atol=1e-12
    )
    assert len(note.state.content()["images"]) == 5


def test_what_is_kept_does_not_depend_on_how_the_stream_is_cut() -> None:
    clf, images = testing.small_classifier(dtype="float64"), torch.cat(stream(8))
    contents = []
    for size in (1, 7, 40):
        method = ramen.create("note", clf, lr=0.0, memory=6)
        for batch in images.split(size):
            method.predict(batch)
        contents.append(method.state.content())
    for other in contents[1:]:
        assert torch.equal(other["images"], contents[0]["images"])
        assert torch.equal(other["seen"], contents[0]["seen"])


def test_half_precision_images_are_stored_in_the_encoders_type() -> None:
    method = ramen.create("note", testing.small_classifier(dtype="bfloat16"), memory=4)
    method.predict(stream(1)[0].float())
    assert method.state.content()["images"].dtype == torch.bfloat16
    assert method.state.content()["affine"].dtype == torch.float32


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
    before = method.state.content()
    with pytest.raises(ValueError, match="images"):
        method.predict(torch.randn(5, 3, 8, 9))
    assert method.images_seen == 5
    assert all(torch.equal(before[name], tensor) for name, tensor in method.state.content().items())
    resumed = ramen.create("note", clf, memory=4)
    resumed.load_state_dict(method.state_dict())
    assert torch.equal(resumed.state.content()["images"], before["images"])
    method.load_state_dict(fresh)
    method.predict(torch.randn(2, 3, 8, 9))  # an empty memory takes any size
