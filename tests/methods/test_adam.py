import pytest
import torch

from ramen.methods._adam import AdamState, adam_step


@pytest.mark.parametrize("lr", [1e-3, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_equals_torchs(lr: float, decay: float) -> None:
    """On a vector of three parts, with gradients of all sizes, zeros and changes of sign."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, generator=generator, dtype=torch.float64) for n in (3, 40, 7)]
    parameters = [torch.nn.Parameter(p.clone()) for p in parts]
    adam = torch.optim.Adam(parameters, lr=lr)
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=decay) if decay else adam
    affine = torch.cat(parts)
    state = AdamState.zero(affine)
    for step in range(30):
        gradient = torch.randn(50, generator=generator, dtype=torch.float64) * 10.0 ** (step % 12 - 9)
        gradient[::5] = 0
        for parameter, g in zip(parameters, gradient.split([3, 40, 7]), strict=True):
            parameter.grad = g.clone()
        optimizer.step()
        before = affine.clone()
        new, state = adam_step(affine, gradient, state, lr, decay)
        assert torch.equal(affine, before)
        affine = new
        expected = torch.cat([p.detach() for p in parameters])
        torch.testing.assert_close(affine, expected, rtol=0, atol=1e-13)
    assert state.steps == 30


def test_the_first_step_is_signed() -> None:
    gradient = torch.tensor([3.0, -1e-3, 0.0])
    affine, _ = adam_step(torch.ones(3), gradient, AdamState.zero(gradient), lr=0.1)
    torch.testing.assert_close(affine, torch.tensor([0.9, 1.1, 1.0]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_gradient_shows_in_the_last_vector(bad: float) -> None:
    affine = torch.zeros(3)
    state = AdamState.zero(affine)
    for step in range(5):
        gradient = torch.ones(3)
        if step == 1:
            gradient[2] = bad
        affine, state = adam_step(affine, gradient, state, lr=0.1)
    assert affine.isfinite().tolist() == [True, True, False]
