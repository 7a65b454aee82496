"""What a router is asked and what its answers do, against ordinary modules and rows per image."""

import copy

import pytest
import torch
from torch import Tensor, nn

from ramen import testing
from ramen.encoder.encoder import AffineEncoder
from tests.encoder.test_affine_encoder import ENCODERS, make


def pieces_of(encoder: AffineEncoder, layer: str, rows: Tensor) -> Tensor:
    return torch.cat([rows[:, p.start : p.stop] for p in encoder.layout if p.layer == layer], 1)


@pytest.mark.parametrize("kind", ENCODERS)
def test_what_it_adds_equals_a_row_per_image(kind: str, images: Tensor) -> None:
    encoder, images = AffineEncoder(make(kind).double()), images.double()
    generator = torch.Generator().manual_seed(2)
    added = 0.1 * torch.randn(len(images), len(encoder.base), generator=generator, dtype=torch.float64)
    last = encoder.layout[-1].layer  # left as it is
    expected_rows = added.clone()
    for piece in encoder.layout:
        if piece.layer == last:
            expected_rows[:, piece.start : piece.stop] = 0

    def router(layer: str, means: Tensor) -> Tensor | None:
        return None if layer == last else pieces_of(encoder, layer, added)

    expected = encoder(images, encoder.base + expected_rows)
    torch.testing.assert_close(encoder(images, router=router), expected, rtol=0, atol=1e-12)
    # on top of parameters that images share, or that each has by itself
    shift = 0.1 * torch.ones_like(encoder.base)
    for affine in (encoder.base + shift, (encoder.base + shift).expand(len(images), -1)):
        found = encoder(images, affine, router=router)
        shifted = encoder(images, encoder.base + shift + expected_rows)
        torch.testing.assert_close(found, shifted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ENCODERS)
def test_it_sees_the_mean_of_what_each_image_gives_the_layer(kind: str, images: Tensor) -> None:
    module, images = make(kind).double().eval(), images.double()
    encoder = AffineEncoder(module)
    seen: list[tuple[str, Tensor]] = []
    encoder(images, router=lambda layer, means: seen.append((layer, means)))

    ordinary = copy.deepcopy(module)
    expected: list[list[tuple[str, Tensor]]] = []
    for name, layer in ordinary.named_modules():
        if name in {piece.layer for piece in encoder.layout}:

            def note(layer: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                (x,) = inputs
                channels = isinstance(layer, nn.BatchNorm2d | nn.GroupNorm)
                rows = x.movedim(1, -1) if channels else x
                expected[-1].append((name, rows.reshape(-1, rows.shape[-1]).mean(0)))

            layer.register_forward_pre_hook(note)
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            for image in images:
                expected.append([])
                ordinary(image[None])
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    assert [name for name, _ in seen] == [name for name, _ in expected[0]]
    for call, (_, means) in enumerate(seen):
        rows = torch.stack([of_image[call][1] for of_image in expected])
        torch.testing.assert_close(means, rows, rtol=0, atol=1e-10)


def test_gradients_flow_through_it(images: Tensor) -> None:
    encoder, images = AffineEncoder(make("vit").double()), images.double()
    first = encoder.layout[2].layer
    size = sum(p.stop - p.start for p in encoder.layout if p.layer == first)
    weight = torch.zeros(size, dtype=torch.float64, requires_grad=True)

    def loss(weight: Tensor) -> Tensor:
        def router(layer: str, means: Tensor) -> Tensor | None:
            return means.mean(1, keepdim=True) * weight if layer == first else None

        return encoder(images, router=router)[:, 0].sum()

    (gradient,) = torch.autograd.grad(loss(weight), weight)
    step = torch.zeros(size, dtype=torch.float64)
    step[3] = 1e-6
    difference = (loss(step) - loss(-step)) / 2e-6
    assert gradient.norm() > 1e-4
    torch.testing.assert_close(gradient[3], difference.detach(), rtol=1e-4, atol=1e-8)


def test_an_error_in_it_leaves_no_trace(images: Tensor) -> None:
    clf = testing.small_classifier()
    before = clf.encode(images)

    def router(layer: str, means: Tensor) -> Tensor | None:
        raise KeyError(layer)

    with pytest.raises(KeyError):
        clf.encode(images, router=router)
    assert torch.equal(clf.encode(images), before)


def test_fp16_gradients_of_embeddings_of_any_length(images: Tensor) -> None:
    """Scaled as those of unit embeddings are."""
    encoder = AffineEncoder(make("resnet"), dtype="float16")
    affine = encoder.base.clone().requires_grad_()
    unit = encoder(images, affine)
    raw = encoder(images, affine, normalize=False)
    assert raw.dtype == torch.float32
    torch.testing.assert_close(nn.functional.normalize(raw, dim=1), unit, rtol=0, atol=1e-3)
    tiny = 1e-6  # below what fp16 can hold of a gradient
    expected = encoder.gradient(tiny * unit[:, 0].sum(), affine)
    found = encoder.gradient(tiny * nn.functional.normalize(raw, dim=1)[:, 0].sum(), affine)
    assert expected.norm() > 0
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05 * expected.abs().max().item())
