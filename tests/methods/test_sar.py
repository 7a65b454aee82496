"""SAR against a mutable model whose weights are written up the gradient, back, and down."""

import math

import pytest
import torch
from open_clip.modified_resnet import ModifiedResNet
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

import ramen
from ramen import AffineEncoder, testing
from ramen.methods._optim import trained_part
from tests.oracles.mutable_model import CLASSES, MutableModel, stream, use_batch_statistics


class Oracle(MutableModel):
    """The steps of SAR's code: boolean indexing, means of possibly nothing, a float or None as average."""

    def __init__(
        self,
        kind: str,
        lr: float,
        margin: float = 0.4,
        rho: float = 0.05,
        reset_below: float = 0.2,
        frozen: tuple[str, ...] = (),
        clear_average: bool = False,
    ) -> None:
        super().__init__(kind)
        for name in [n for n in self.parameters if n.startswith(frozen)] if frozen else []:
            self.parameters.pop(name).requires_grad_(False)
        self.lr, self.rho, self.reset_below = lr, rho, reset_below
        self.bound = margin * math.log(CLASSES)
        self.clear_average = clear_average
        self.average: float | None = None
        self.resets = 0
        self.sizes: list[tuple[int, int]] = []

    def predict(self, images: Tensor) -> Tensor:
        logits = self.logits(images)
        entropies = self.uncertainties(logits)
        first = torch.where(entropies < self.bound)
        self.zero_grad()
        entropies[first].mean().backward()

        old = {name: p.detach().clone() for name, p in self.parameters.items()}
        norm = torch.stack([p.grad.norm() for p in self.parameters.values()]).norm()
        with torch.no_grad():
            for p in self.parameters.values():
                p += p.grad * self.rho / (norm + 1e-12)

        self.zero_grad()
        entropies = self.entropies(images)[first]
        second = torch.where(entropies < self.bound)
        loss = entropies[second].mean()
        loss.backward()
        self.sizes.append((len(first[0]), len(second[0])))
        with torch.no_grad():
            for name, p in self.parameters.items():
                p.copy_(old[name])
        self.move(self.lr)

        if not math.isnan(loss.item()):
            self.average = loss.item() if self.average is None else 0.9 * self.average + 0.1 * loss.item()
        if self.average is not None and self.average < self.reset_below:
            self.reset()
            self.resets += 1
            if self.clear_average:
                self.average = None
        return logits.detach()


def compare(oracle: Oracle, method: ramen.Method, batches: list[Tensor], atol: float = 1e-7) -> None:
    for index, images in enumerate(batches):
        out = method.predict(images)
        torch.testing.assert_close(
            out.logits, oracle.predict(images), rtol=0, atol=atol, msg=lambda m, i=index: f"batch {i}: {m}"
        )
        assert method.resets == oracle.resets
        content = method.state.content()
        assert content["started"].item() == (oracle.average is not None)
        if oracle.average is not None:
            assert content["average"].item() == pytest.approx(oracle.average, abs=1e-7)


def test_equals_a_mutable_model(tower_kind: str) -> None:
    """Both filters keep some images and drop others."""
    settings = {"lr": 2e-3, "margin": 0.35, "rho": 0.3, "reset_below": 0.0}
    oracle = Oracle(tower_kind, **settings)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("sar", clf, **settings)
    compare(oracle, method, stream(24, 8))
    assert sum(0 < first < 8 for first, _ in oracle.sizes) > 15
    assert any(second < first for first, second in oracle.sizes)
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-3)


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    """Those of the whole batch in both passes, whichever images are confident."""
    settings = {"lr": 2e-3, "margin": 0.35, "rho": 0.3, "reset_below": 0.0}
    oracle = Oracle("resnet", **settings)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    method = ramen.create("sar", clf, **settings, statistics="batch")
    compare(oracle, method, [*stream(22, 8), *stream(1, 2)])
    assert sum(0 < first < 8 for first, _ in oracle.sizes) > 10
    assert any(second < first for first, second in oracle.sizes)
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-3)


def test_equals_a_mutable_model_with_its_own_settings(tower_kind: str) -> None:
    oracle = Oracle(tower_kind, 2e-5)
    method = ramen.create("sar", testing.small_classifier(tower_kind, dtype="float64"))
    compare(oracle, method, stream(20))


@pytest.mark.parametrize(("optimizer", "loss"), [("sgd", "entropy"), ("adam", "come"), ("sign", "come")])
def test_equals_a_mutable_model_with_other_optimizers_and_losses(
    tower_kind: str, optimizer: str, loss: str
) -> None:
    """Both filters drop some images, by the values that the loss has here."""
    # With larger steps of SGD the last bits, which differ from the oracle, triple with every batch.
    lr = {"sgd": 2e-4, "adam": 1e-3, "sign": 1e-3}[optimizer]
    margin = {"entropy": 0.35, "come": 0.5}[loss]
    settings = {"lr": lr, "margin": margin, "rho": 0.3, "reset_below": 0.0}
    oracle = Oracle(tower_kind, **settings)
    oracle.use_optimizer(optimizer, lr)
    oracle.loss = loss
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("sar", clf, **settings, optimizer=optimizer, loss=loss)
    # steps of full size in the direction of the gradient amplify last bits, which differ between versions
    compare(oracle, method, stream(20, 8), atol=1e-5)
    assert sum(0 < first < 8 for first, _ in oracle.sizes) > 7
    assert any(second < first for first, second in oracle.sizes)
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-3)


def test_recovery_restarts_the_optimizer() -> None:
    settings = {"lr": 5e-3, "margin": 0.8, "reset_below": 0.395, "clear_average": True}
    oracle = Oracle("vit", **settings)
    oracle.use_optimizer("sgd", 5e-3)
    method = ramen.create(
        "sar", testing.small_classifier(dtype="float64"), **settings, optimizer="sgd", sgd_momentum=0.9
    )
    compare(oracle, method, stream(20, 6))
    assert 2 <= oracle.resets <= 18


@pytest.mark.parametrize("clear_average", [False, True])
def test_recovery(tower_kind: str, clear_average: bool) -> None:
    """The average falls below its bound: back to the pretrained weights, with or without the average."""
    reset_below = {"vit": 0.395, "resnet": 0.29}[tower_kind]
    settings = {"lr": 5e-3, "margin": 0.8, "reset_below": reset_below, "clear_average": clear_average}
    oracle = Oracle(tower_kind, **settings)
    method = ramen.create("sar", testing.small_classifier(tower_kind, dtype="float64"), **settings)
    compare(oracle, method, stream(30, 6))
    assert 2 <= oracle.resets <= 25


def test_a_kept_average_resets_again_and_a_cleared_one_starts_anew() -> None:
    """By hand, with a bound that every loss is below: what differs is the average that is left."""
    clf = testing.small_classifier(dtype="float64")
    kept, cleared = (
        ramen.create("sar", clf, lr=1e-2, margin=1.0, reset_below=10.0, clear_average=clear)
        for clear in (False, True)
    )
    for number, images in enumerate(stream(3), start=1):
        for method in (kept, cleared):
            out = method.predict(images)
            torch.testing.assert_close(out.logits, out.zero_shot_logits)  # reset after every batch
            assert method.resets == number
            assert torch.equal(method.state.content()["affine"], clf.encoder.base)
    assert kept.state.content()["started"]
    assert kept.state.content()["average"] > 0
    assert not cleared.state.content()["started"]
    assert cleared.state.content()["average"] == 0


def test_no_confident_image_no_change(tower_kind: str) -> None:
    clf = testing.small_classifier(tower_kind)
    method = ramen.create("sar", clf, lr=1e-2, margin=0.0)
    for images in stream(3):
        method.predict(images.float())
    assert torch.equal(method.state.content()["affine"], clf.encoder.base)
    assert not method.state.content()["started"]
    assert method.resets == 0


def test_an_empty_set_between_others_leaves_weights_and_average() -> None:
    """The batch in the middle has no confident image; the average is not compared anew as if it had one."""
    clf = testing.small_classifier(dtype="float64")
    settings = {"lr": 2e-3, "margin": 0.5, "rho": 0.05, "reset_below": 0.0}
    images = torch.cat(stream(12, 8))
    with torch.no_grad():
        entropies = MutableModel("vit").entropies(images)
    unsure, sure = images[entropies > 0.9][:6], images[entropies < 0.5][:6]
    assert len(unsure) == len(sure) == 6
    oracle, method = Oracle("vit", **settings), ramen.create("sar", clf, **settings)
    compare(oracle, method, [sure, unsure, sure, unsure, unsure, sure])
    assert [first for first, _ in oracle.sizes][1] == 0
    before = method.state.content()
    compare(oracle, method, [unsure])
    if oracle.sizes[-1][0] == 0:
        assert all(torch.equal(before[name], tensor) for name, tensor in method.state.content().items())


def test_none_is_confident_any_more_at_the_worst_weights() -> None:
    """A long way up leaves the second set empty: no step, no entry into the average."""
    clf = testing.small_classifier(dtype="float64")
    settings = {"lr": 1e-2, "margin": 0.3, "rho": 20.0, "reset_below": 0.0}
    oracle, method = Oracle("vit", **settings), ramen.create("sar", clf, **settings)
    compare(oracle, method, stream(6, 2))
    assert any(first > 0 and second == 0 for first, second in oracle.sizes)


# -- frozen top layers ------------------------------------------------------------------------------


def test_frozen_equals_a_mutable_model(tower_kind: str) -> None:
    """The small ViT has two blocks, so that only ln_pre is left; the ResNet loses its last stage."""
    frozen = ("transformer.", "ln_post") if tower_kind == "vit" else ("layer4.",)
    oracle = Oracle(tower_kind, 5e-3, margin=0.6, rho=0.3, reset_below=0.0, frozen=frozen)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("sar", clf, lr=5e-3, margin=0.6, rho=0.3, reset_below=0.0, frozen="top")
    compare(oracle, method, stream(20, 6))
    affine = method.state.content()["affine"]
    for piece in clf.encoder.layout:
        part = slice(piece.start, piece.stop)
        assert torch.equal(affine[part], clf.encoder.base[part]) == piece.layer.startswith(frozen)


@pytest.mark.parametrize(("blocks", "frozen"), [(12, (9, 10, 11)), (24, (21, 22, 23)), (2, (0, 1))])
def test_frozen_layers_of_transformers(blocks: int, frozen: tuple[int, ...]) -> None:
    encoder = AffineEncoder(VisionTransformer(16, 8, 8, blocks, 2, 1.0, output_dim=4))
    trained = trained_part(encoder, "top")
    off = {p.layer for p in encoder.layout if (trained[p.start : p.stop] == 0).all()}
    on = {p.layer for p in encoder.layout if (trained[p.start : p.stop] == 1).all()}
    assert off == {f"transformer.resblocks.{i}.{ln}" for i in frozen for ln in ("ln_1", "ln_2")} | {"ln_post"}
    assert on == {p.layer for p in encoder.layout} - off
    assert (trained_part(encoder, "none") == 1).all()


def test_frozen_layers_of_resnets() -> None:
    encoder = AffineEncoder(ModifiedResNet((1, 1, 2, 2), 8, heads=2, image_size=32, width=4))
    trained = trained_part(encoder, "top")
    off = {p.layer for p in encoder.layout if (trained[p.start : p.stop] == 0).all()}
    assert off == {p.layer for p in encoder.layout if p.layer.startswith("layer4.")}
    assert any("downsample" in layer for layer in off)
    assert "layer3.1.bn3" not in off


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.ModuleList([nn.Sequential(nn.LayerNorm(12))]) for _ in range(2)]
        self.layers = nn.ModuleList([nn.ModuleDict({"blocks": block}) for block in blocks])

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.layers:
            x = stage["blocks"][0](x.flatten(1))
        return x


@pytest.mark.parametrize("tower", [nn.Sequential(nn.Flatten(), nn.LayerNorm(12)), Nested()])
def test_frozen_needs_names_that_it_knows(tower: nn.Module) -> None:
    clf = ramen.ZeroShotClassifier(tower, torch.randn(3, 12))
    with pytest.raises(ValueError, match=r"frozen='top' must find the blocks .*; use frozen='none'"):
        ramen.create("sar", clf, frozen="top")
    ramen.create("sar", clf)


# -- the rest ---------------------------------------------------------------------------------------


def test_reset_forgets_average_and_count() -> None:
    method = ramen.create("sar", testing.small_classifier(), margin=1.0, reset_below=10.0)
    method.predict(stream(1)[0].float())
    assert method.resets == 1
    method.reset()
    assert method.resets == 0
    assert not method.state.content()["started"]
