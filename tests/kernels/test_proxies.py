"""Prior and proxies that learn from image after image: the program equals plain torch."""

import pytest
import torch
import torch.nn.functional as F

from ramen.kernels import proxies

SHAPES = [(1, 1), (1, 5), (7, 3), (32, 100), (5, 300)]
SHARPNESS = 25.0


def start(images: int, classes: int, device: str = "cpu") -> proxies.Start:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(images + 2 * classes, 16, generator=generator)
    z, texts, own = F.normalize(vectors, dim=1).to(device).split([images, classes, classes])
    rates = 1 / torch.arange(1, images + 1, device=device).sqrt()
    rates[images // 2] = 0  # of an image that leaves no trace
    return proxies.Start(
        text_logits=100 * z @ texts.T,
        seen=SHARPNESS * z @ own.T,
        similar=SHARPNESS * z @ z.T,
        prior=torch.rand(classes, generator=generator).to(device),
        prior_rates=20 * rates,
        proxy_rates=0.5 * SHARPNESS * rates,
    )


def check(images: int, classes: int, device: str = "cpu") -> None:
    """The program is about as close to fp64 as plain torch: each image amplifies the rounding before it."""
    given = start(images, classes, device)
    wide = proxies.Start(**{name: value.double() for name, value in vars(given).items()})
    exact = proxies._follow_torch(wide, 1 / classes, SHARPNESS)
    plain = proxies._follow_torch(given, 1 / classes, SHARPNESS)
    fused = proxies._follow_triton(given, 1 / classes, SHARPNESS)
    for name, expected in vars(exact).items():
        limit = 5 * (getattr(plain, name) - expected).abs().max() + 1e-6 * expected.abs().max()
        assert (getattr(fused, name) - expected).abs().max() <= limit, name


@pytest.mark.interpreted
@pytest.mark.parametrize(("images", "classes"), SHAPES)
def test_the_program_equals_torch(images: int, classes: int) -> None:
    check(images, classes)


@pytest.mark.interpreted
def test_images_that_leave_no_trace() -> None:
    given = start(6, 4)
    still = proxies.Start(
        **{**vars(given), "prior_rates": torch.zeros(6), "proxy_rates": torch.zeros(6)},
    )
    found = proxies._follow_triton(still, 0.25, SHARPNESS)
    assert torch.equal(found.prior, given.prior)
    assert not found.steps.any()
    assert torch.equal(found.shrinking, torch.ones(6, 4))
    torch.testing.assert_close(found.log_proxies, given.seen.log_softmax(1))
    torch.testing.assert_close(found.log_text, (given.text_logits + given.prior).log_softmax(1))


@pytest.mark.interpreted
def test_what_is_not_finite_stays_so() -> None:
    """A proxy that was cancelled again and again must not look like a finite one."""
    given = start(3, 4)
    given.seen[1, 2] = torch.nan
    plain = proxies._follow_torch(given, 0.25, SHARPNESS)
    fused = proxies._follow_triton(given, 0.25, SHARPNESS)
    for name in vars(plain):
        assert torch.equal(getattr(plain, name).isnan(), getattr(fused, name).isnan()), name


def test_how_many_images_at_once() -> None:
    assert proxies.images_at_once(torch.empty(100, 8)) == 32


@pytest.mark.gpu
@pytest.mark.parametrize(("images", "classes"), [*SHAPES, (128, 100), (16, 1000), (2, 8192)])
def test_the_program_equals_torch_on_a_gpu(images: int, classes: int) -> None:
    check(images, classes, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("classes", "expected"), [(100, 128), (1000, 16), (8192, 2), (8193, 32)])
def test_how_many_images_at_once_on_a_gpu(classes: int, expected: int) -> None:
    assert proxies.images_at_once(torch.empty(classes, 8, device="cuda")) == expected
    assert proxies.images_at_once(torch.empty(classes, 8, device="cuda", dtype=torch.float64)) == 32
