"""DeYO against a mutable model with boolean indexing, loops over tiles and torch's optimizers."""

import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.utils.numerics import pair_scores
from tests.oracles.mutable_model import CLASSES, MutableModel, stream, use_batch_statistics
from tests.oracles.mutable_model import compare as compare_answers

LOOSE = {"lr": 5e-4, "margin": 0.35, "plpd_threshold": 0.1}  # each filter keeps some images and drops others


class Oracle(MutableModel):
    """The steps of DeYO's code: what the first filter drops is not encoded again."""

    def __init__(
        self,
        kind: str,
        lr: float,
        margin: float = 0.5,
        plpd_threshold: float = 0.2,
        weight_margin: float = 0.4,
        transform: str = "patch",
        patches: int = 4,
        frozen: str = "top",
        optimizer: str = "sgd",
        loss: str = "entropy",
        seed: int = 0,
    ) -> None:
        super().__init__(kind)
        top = {"vit": ("transformer.", "ln_post"), "resnet": ("layer4.",)}[kind] if frozen == "top" else ()
        for name in [name for name in self.parameters if name.startswith(top)] if top else []:
            self.parameters.pop(name).requires_grad_(False)
        self.use_optimizer(optimizer, lr)
        self.lr, self.loss, self.seed = lr, loss, seed
        self.margin, self.weight_margin = (m * math.log(CLASSES) for m in (margin, weight_margin))
        self.threshold, self.transform, self.patches = plpd_threshold, transform, patches
        self.seen = 0
        self.kept: list[tuple[int, int]] = []

    def order(self, number: int, places: int) -> list[int]:
        scores = pair_scores(self.seed, torch.tensor([number]), torch.arange(places))[0].tolist()
        return sorted(range(places), key=scores.__getitem__)

    def destroyed(self, images: Tensor) -> list[Tensor]:
        found = [image.clone() for image in images]
        if self.transform == "pixel":
            order = self.order(self.seen, 32 * 32)
            return [image.flatten(1)[:, order].view(3, 32, 32) for image in images]
        for number, (new, image) in enumerate(zip(found, images, strict=True)):
            if self.transform == "occlusion":
                new[:, 8:24, 8:24] = image.mean((1, 2), keepdim=True)
                continue
            side = 32 // self.patches
            order = self.order(self.seen + number + 1, self.patches**2)
            for place, source in enumerate(order):
                to, origin = (
                    (slice(i // self.patches * side, (i // self.patches + 1) * side),
                     slice(i % self.patches * side, (i % self.patches + 1) * side))
                    for i in (place, source)
                )  # fmt: skip
                new[:, *to] = image[:, *origin]
        return found

    def predict(self, images: Tensor) -> Tensor:
        logits = self.logits(images)
        entropies = self.uncertainties(logits)
        first = torch.where(entropies < self.margin)[0]
        second = first[:0]
        if len(first):
            with torch.no_grad():
                after = self.logits(torch.stack(self.destroyed(images))[first]).softmax(1)
            before = logits[first].detach().softmax(1)
            labels = before.argmax(1)
            rows = torch.arange(len(first))
            drop = before[rows, labels] - after[rows, labels]
            second, drop = first[drop > self.threshold], drop[drop > self.threshold]
        self.kept.append((len(first), len(second)))
        if len(second):
            chosen = entropies[second]
            weights = torch.exp(self.weight_margin - chosen.detach()) + torch.exp(drop)
            self.zero_grad()
            (weights * chosen).mean().backward()
            self.move(self.lr)
        self.seen += len(images)
        return logits.detach()


def compare(oracle: Oracle, method: ramen.Method, batches: list[Tensor]) -> None:
    compare_answers(oracle, method, batches, 1e-7)
    assert method.state.content()["seen"] == oracle.seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"frozen": "none", "optimizer": "adam", "weight_margin": 0.2},
        {"optimizer": "sign", "patches": 2, "seed": 5},
        {"loss": "come"},
        {"transform": "pixel"},
        {"transform": "occlusion"},
    ],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, options: dict) -> None:
    settings = {**LOOSE, **options}
    oracle = Oracle(tower_kind, **settings)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("deyo", clf, **settings)
    compare(oracle, method, stream(20, 8))
    assert sum(0 < first < 8 for first, _ in oracle.kept) > 5
    assert sum(0 < second < first for first, second in oracle.kept) > 5
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-3)


def test_equals_a_mutable_model_with_its_own_settings(tower_kind: str) -> None:
    oracle = Oracle(tower_kind, 1e-3)
    method = ramen.create("deyo", testing.small_classifier(tower_kind, dtype="float64"))
    compare(oracle, method, stream(20))


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    """In the second pass, those of the images that the first filter has kept."""
    oracle = Oracle("resnet", **LOOSE)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    method = ramen.create("deyo", clf, **LOOSE, statistics="batch")
    compare(oracle, method, stream(20, 8))
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-3)


def test_one_image_at_a_time_equals_a_mutable_model() -> None:
    oracle = Oracle("vit", **LOOSE)
    method = ramen.create("deyo", testing.small_classifier(dtype="float64"), **LOOSE)
    compare(oracle, method, stream(20, 1))
    assert {second for _, second in oracle.kept} == {0, 1}


def test_only_lower_layers_move(tower_kind: str) -> None:
    """The small ViT has two blocks, so that only ln_pre is left; the ResNet loses its last stage."""
    clf = testing.small_classifier(tower_kind)
    method = ramen.create("deyo", clf, **LOOSE)
    for images in stream(4, 8):
        method.predict(images.float())
    affine, frozen = method.state.content()["affine"], ("transformer.", "ln_post", "layer4.")
    for piece in clf.encoder.layout:
        part = slice(piece.start, piece.stop)
        assert torch.equal(affine[part], clf.encoder.base[part]) == piece.layer.startswith(frozen)


@pytest.mark.parametrize("settings", [{"margin": 0.0}, {"plpd_threshold": 1.0}], ids=str)
def test_nothing_kept_nothing_changes(settings: dict) -> None:
    """Also with momentum, which would go on moving the weights."""
    clf = testing.small_classifier()
    moved, method = ramen.create("deyo", clf, **LOOSE), ramen.create("deyo", clf, **{**LOOSE, **settings})
    first, second = (batch.float() for batch in stream(2, 8))
    moved.predict(first)
    before = moved.state.content()
    assert before["velocity"].norm() > 0
    method.load_state_dict(moved.state_dict())
    method.predict(second)
    assert method.state.content().pop("seen") == 16
    assert all(torch.equal(before[name], method.state.content()[name]) for name in ("affine", "velocity"))


def test_an_image_without_an_object_is_dropped() -> None:
    """Patches of a plain image change places without effect: its probability does not fall."""
    clf = testing.small_classifier()
    plain = torch.ones(8, 3, 32, 32) * torch.linspace(-2, 2, 8).view(8, 1, 1, 1)
    kept, dropped = (
        ramen.create("deyo", clf, margin=2.0, plpd_threshold=threshold) for threshold in (-0.1, 0.001)
    )
    for method in (kept, dropped):
        method.predict(plain)
    assert not torch.equal(kept.state.content()["affine"], clf.encoder.base)
    assert torch.equal(dropped.state.content()["affine"], clf.encoder.base)
