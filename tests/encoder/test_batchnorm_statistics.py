"""BatchNorm statistics per call, against modules in train mode and a plain layer that mixes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ramen import AffineEncoder, testing
from ramen.encoder.statistics import Statistics, of_batch
from tests.oracles.mutable_model import RobustBatchNorm, use_batch_statistics, use_robust_batch_norm


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def features(
    encoder: AffineEncoder, images: Tensor, affine: Tensor | None = None, statistics: Statistics | None = None
) -> Tensor:
    return encoder(images, affine, statistics=statistics, normalize=False)


def resnet(device: str | None = None, dtype: str = "float64") -> AffineEncoder:
    return AffineEncoder(testing.small_tower("resnet"), device=device, dtype=dtype)


def truth(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def gradient(function: Callable[[Tensor], Tensor], affine: Tensor) -> Tensor:
    affine = affine.detach().requires_grad_()
    features = function(affine)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2)).to(features)
    (found,) = torch.autograd.grad((features * weights).sum(), affine)
    return found


def module_gradient(module: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Features, and the gradient of the norm parameters, one after the other."""
    kinds = nn.BatchNorm2d | RobustBatchNorm
    layers = [layer for layer in module.modules() if isinstance(layer, kinds)]
    parameters = [p.requires_grad_() for layer in layers for p in (layer.weight, layer.bias)]
    features = module(images)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2)).to(features)
    found = torch.autograd.grad((features * weights).sum(), parameters)
    return features.detach(), torch.cat([g.flatten() for g in found])


# -- the batch's own --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [2, 6])
def test_equals_a_module_in_train_mode(batch: int, images: Tensor) -> None:
    """The gradient too: it flows through mean and variance."""
    images, encoder = images[:batch], resnet()
    module = use_batch_statistics(testing.small_tower("resnet").double().requires_grad_(False))
    expected, expected_gradient = module_gradient(module, images)
    torch.testing.assert_close(
        encoder(images, statistics=Statistics(), normalize=False), expected, rtol=0, atol=1e-10
    )
    found = gradient(lambda w: encoder(images, w, statistics=Statistics(), normalize=False), encoder.base)
    torch.testing.assert_close(found, expected_gradient, rtol=1e-8, atol=1e-10)
    assert (expected - encoder(images, normalize=False)).abs().max() > 0.01  # running statistics differ


@pytest.mark.parametrize("bad", [0.0, 50.0, torch.nan, torch.inf])
def test_an_image_that_is_not_counted_has_no_effect_on_the_others(bad: float, images: Tensor) -> None:
    encoder = resnet()
    counted = truth(1, 0, 1, 1, 0, 1)
    expected = encoder(images[counted], statistics=Statistics())
    images[~counted] = bad
    found = encoder(images, statistics=Statistics(counted))
    torch.testing.assert_close(found[counted], expected, rtol=0, atol=1e-10)


def test_an_image_that_is_not_counted_has_no_effect_on_the_gradient(images: Tensor) -> None:
    encoder, counted = resnet(), truth(1, 0, 1, 1, 0, 1)
    images[~counted] = 7.0
    expected = gradient(
        lambda w: encoder(images[counted], w, statistics=Statistics(), normalize=False), encoder.base
    )
    found = gradient(
        lambda w: encoder(images, w, statistics=Statistics(counted), normalize=False)[counted], encoder.base
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_an_image_that_is_not_counted_is_normalised_like_the_others() -> None:
    layer, linear = nn.BatchNorm2d(3).double(), nn.Linear(12, 5).double()
    encoder = AffineEncoder(nn.Sequential(layer, nn.Flatten(), linear))
    images = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    images[2] += 100
    rest = images[[0, 1, 3]]
    mean, var = rest.mean((0, 2, 3)), rest.var((0, 2, 3), correction=0)
    normalised = (images - mean.view(3, 1, 1)) / (var.view(3, 1, 1) + layer.eps).sqrt()
    expected = linear(normalised.flatten(1)).detach()
    found = encoder(images, statistics=Statistics(truth(1, 1, 0, 1)), normalize=False)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_one_image(images: Tensor) -> None:
    """Its pixels have statistics if there are several: in the last layer of this tower there is one."""
    encoder = resnet()
    assert encoder(images[:1], statistics=Statistics()).isfinite().all()
    layer, linear = nn.BatchNorm2d(3).double().train(), nn.Linear(12, 5).double()
    small = AffineEncoder(nn.Sequential(layer, nn.Flatten(), linear))
    one = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    found = small(one, statistics=Statistics(), normalize=False)
    torch.testing.assert_close(found, linear(layer(one).flatten(1)).detach())


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_if_no_image_is_counted_the_stored_statistics_are_used(share: float, images: Tensor) -> None:
    encoder = resnet()
    nothing = Statistics(torch.zeros(6, dtype=torch.bool), share=share)
    torch.testing.assert_close(
        encoder(images, statistics=nothing, normalize=False),
        encoder(images, normalize=False),
        rtol=0,
        atol=1e-10,
    )
    torch.testing.assert_close(nothing.mixed, encoder.base_statistics)


def test_an_infinite_variance_becomes_nan() -> None:
    """In fp32 the square of 1e25 is infinite, and all images would have the same answer."""
    encoder = AffineEncoder(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5)))
    images = torch.randn(4, 3, 2, 2)
    images[1, 0] = 1e25
    assert encoder(images, normalize=False).isfinite().all()
    assert encoder(images, statistics=Statistics(), normalize=False).isnan().all()
    assert encoder(images, statistics=Statistics(truth(1, 0, 1, 1)), normalize=False).isfinite().all()


def test_parameters_per_image(images: Tensor) -> None:
    encoder = resnet()
    rows = encoder.base.expand(6, -1)
    shared, own = (encoder(images, w, statistics=Statistics()) for w in (encoder.base, rows))
    torch.testing.assert_close(own, shared, rtol=0, atol=1e-10)
    changed = rows.clone()
    changed[2, :4] += 1  # only the first weights: later layers mix the images
    assert not torch.allclose(encoder(images, changed, statistics=Statistics())[0], shared[0], atol=1e-6)


class _Crops(nn.Module):
    """Splits each image into its four quarters, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm2d(3), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        quarters = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        return self.linear(self.norm(quarters).flatten(1)).view(len(x), 4, 5).mean(1)


def test_several_rows_per_image() -> None:
    encoder = AffineEncoder(_Crops().double())
    images = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    counted = truth(0, 1, 1, 0, 1)
    expected = encoder(images[counted], statistics=Statistics())
    images[~counted] = 30
    found = encoder(images, statistics=Statistics(counted))
    torch.testing.assert_close(found[counted], expected, rtol=0, atol=1e-10)


def test_batch_norm_of_vectors() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4)).double().requires_grad_(False)
    encoder = AffineEncoder(module)
    images = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    found = encoder(images, statistics=Statistics(), normalize=False)
    module[2].momentum = 0.0
    torch.testing.assert_close(found, module.train()(images), rtol=0, atol=1e-10)


# -- mixed with stored ones -------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.6, 1.0])
def test_equals_a_layer_that_mixes(share: float, images: Tensor) -> None:
    """In several passes; the mixture of one is stored for the next."""
    encoder = resnet()
    module = testing.small_tower("resnet").double().requires_grad_(False)
    layers = use_robust_batch_norm(module, share)
    stored = encoder.base_statistics
    for index in range(4):
        batch = images * (1 + index)
        statistics = Statistics(share=share, stored=stored)
        expected, expected_gradient = module_gradient(module, batch)
        found = gradient(
            lambda w, b=batch, s=statistics: encoder(b, w, statistics=s, normalize=False), encoder.base
        )
        torch.testing.assert_close(found, expected_gradient, rtol=1e-7, atol=1e-9)
        assert not statistics.mixed.requires_grad
        features = encoder(batch, statistics=statistics, normalize=False)
        torch.testing.assert_close(features, expected, rtol=0, atol=1e-9)
        stored = statistics.mixed
        rows = [torch.cat([getattr(layer, kind) for layer in layers]) for kind in ("mean", "var")]
        torch.testing.assert_close(stored, torch.stack(rows), rtol=0, atol=1e-10)


def test_stored_statistics_alone(images: Tensor) -> None:
    encoder = resnet()
    module = testing.small_tower("resnet").double()
    stored = encoder.base_statistics.clone()
    stored[0] += 0.1
    stored[1] *= 1.5
    for layer in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
        layer.running_mean += 0.1
        layer.running_var *= 1.5
    statistics = Statistics(share=0, stored=stored)
    torch.testing.assert_close(
        encoder(images, statistics=statistics, normalize=False), module(images).detach(), rtol=0, atol=1e-10
    )
    assert torch.equal(statistics.mixed, stored)
    same = encoder(images, statistics=Statistics(share=0), normalize=False)
    plain = AffineEncoder(testing.small_tower("resnet").double(), fused=False)  # other statistics are plain
    assert torch.equal(same, plain(images, normalize=False))


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm2d(3), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(2 + self.norm(x)).flatten(1))


def test_a_layer_that_is_called_twice_continues_from_its_mixture() -> None:
    module = _Twice().double().requires_grad_(False)
    encoder = AffineEncoder(module)
    (layer,) = use_robust_batch_norm(module, 0.25)
    images = 3 + 2 * torch.randn(5, 3, 2, 2, dtype=torch.float64)
    statistics = Statistics(share=0.25)
    torch.testing.assert_close(encoder(images, statistics=statistics, normalize=False), module(images))
    torch.testing.assert_close(statistics.mixed, torch.stack([layer.mean, layer.var]))


# -- a pure function --------------------------------------------------------------------------------


def test_base_statistics_are_in_module_order() -> None:
    module = testing.small_tower("resnet")
    encoder = AffineEncoder(module)
    layers = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    assert torch.equal(encoder.base_statistics[0], torch.cat([m.running_mean for m in layers]))
    assert torch.equal(encoder.base_statistics[1], torch.cat([m.running_var for m in layers]))
    assert AffineEncoder(testing.small_tower("vit")).base_statistics.shape == (2, 0)


def test_a_call_leaves_no_state(images: Tensor) -> None:
    encoder = resnet()
    before = {name: tensor.clone() for name, tensor in encoder.weights().items()}
    expected, own = encoder(images), encoder.base_statistics.clone()
    stored = own * 1.1
    kept = stored.clone()
    encoder(images, statistics=Statistics(truth(1, 1, 0, 1, 1, 1), share=0.4, stored=stored))
    with pytest.raises(RuntimeError):
        encoder(torch.zeros(2, 5, 32, 32), statistics=Statistics())
    assert torch.equal(encoder(images), expected)
    assert torch.equal(encoder.base_statistics, own)
    assert torch.equal(stored, kept)
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.weights().items())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 0.03), ("bfloat16", 0.2)])
def test_half_precision(dtype: str, tolerance: float, images: Tensor) -> None:
    wide, half = resnet(), resnet(dtype=dtype)
    statistics = Statistics(truth(1, 1, 0, 1, 1, 1))
    expected, found = (encoder(images, statistics=statistics) for encoder in (wide, half))
    assert found.dtype == torch.float32
    assert statistics.mixed.dtype == torch.float32
    assert (found - expected).norm() < tolerance * expected.norm()
    first, second = (
        gradient(lambda w, e=encoder: e(images, w, statistics=statistics), encoder.base)
        for encoder in (wide, half)
    )
    assert torch.cosine_similarity(first, second.double(), dim=0) > 1 - 5 * tolerance


def test_statistics_are_computed_in_fp32() -> None:
    """In fp16 the squares of 500 would be infinite, in bf16 the mean would have three digits."""
    for dtype in (torch.float16, torch.bfloat16):
        layer = nn.BatchNorm2d(3)
        encoder = AffineEncoder(nn.Sequential(layer, nn.Flatten(), nn.Linear(48, 5)), dtype=dtype)
        images = (500 + 20 * torch.randn(8, 3, 4, 4)).to(dtype)
        statistics = Statistics()
        encoder(images, statistics=statistics, normalize=False)
        rows = torch.stack([images.double().mean((0, 2, 3)), images.double().var((0, 2, 3), correction=0)])
        torch.testing.assert_close(statistics.mixed.double(), rows, rtol=1e-5, atol=0)


def test_fp16_gradients_of_rows_share_one_scale(images: Tensor) -> None:
    """The gradient of each image depends on the others, so that one factor per image would be wrong."""
    half, wide = resnet(dtype="float16"), resnet()

    def rows_gradient(encoder: AffineEncoder) -> Tensor:
        rows = encoder.base.expand(6, -1).clone().requires_grad_()
        embeddings = encoder(images, rows, statistics=Statistics())
        loss = (embeddings[:, 0] * torch.logspace(0, 6, 6).to(embeddings)).sum()
        return encoder.gradient(loss, rows).double()

    found, expected = rows_gradient(half), rows_gradient(wide)
    assert torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.98


# -- errors and choices -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda images: resnet()(images, statistics=Statistics(truth(1, 1))), "counted"),
        (lambda images: resnet()(images, statistics=Statistics(torch.ones(6))), "counted"),
        (lambda images: resnet()(images, statistics=Statistics(stored=torch.ones(2, 3))), "stored"),
        (lambda images: Statistics(share=-0.1), "share"),
        (lambda images: Statistics(share=1.1), "share"),
        (lambda images: AffineEncoder(testing.small_tower())(images, statistics=Statistics()), "statistics"),
    ],
)
def test_refused(call: Callable[[Tensor], object], named: str, images: Tensor) -> None:
    with pytest.raises(ValueError, match=named):
        call(images)


def test_statistics_of_a_batch_are_those_of_its_usable_images() -> None:
    usable = truth(1, 0)
    assert of_batch("source", usable) is None
    assert of_batch("batch", usable).counted is usable
