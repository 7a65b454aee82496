"""The choice of experts: gradients are autograd's, and the programs equal plain torch."""

import pytest
import torch
from torch import Tensor

from ramen.kernels import expert_choice
from ramen.kernels.expert_choice import Choice, Experts

SHAPES = [(1, 1, 1, 1), (5, 9, 12, 6), (7, 3, 300, 290), (4, 16, 20, 10)]  # images, experts, size, inputs


def given(
    images: int, count: int, size: int, inputs: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Experts, Tensor, Tensor]:
    """Means, experts, and gradients of what is added and of the probabilities."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(images, inputs), (count, size), (count, inputs), (count,), (images, size), (images, count)]
    made = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    return made[0], Experts(made[1], made[2] / inputs**0.5, made[3]), made[4], made[5]


def added_and_probabilities(means: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """As its authors write it, for autograd."""
    probabilities = (means @ experts.weight.T + experts.bias).softmax(1)
    likeliest, chosen = probabilities.max(1)
    return experts.offsets[chosen] * (likeliest / likeliest.detach())[:, None], probabilities


def compare(found: object, expected: object, tolerance: float) -> None:
    for name in vars(expected):
        one, two = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_equal_autograds(shape: tuple[int, int, int, int]) -> None:
    means, experts, of_added, of_probabilities = given(*shape, torch.float64)
    choice = expert_choice.forward(means, experts)
    of_means, of_experts = expert_choice.backward(of_added, of_probabilities, means, experts, choice)
    leaves = [means, *vars(experts).values()]
    for leaf in leaves:
        leaf.requires_grad_()
    expected = added_and_probabilities(means, experts)
    torch.testing.assert_close((choice.added, choice.probabilities), expected, rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(expected, leaves, [of_added, of_probabilities])
    found = [of_means, *vars(of_experts).values()]
    torch.testing.assert_close(found, list(gradients), rtol=0, atol=1e-12)


def check(shape: tuple[int, int, int, int], device: str) -> None:
    means, experts, of_added, of_probabilities = given(*shape, torch.float32, device)
    choice = expert_choice._forward_torch(means, experts)
    compare(expert_choice._forward_triton(means, experts), choice, 1e-5)
    arguments = of_added, of_probabilities, experts, choice
    plain = expert_choice._rows_backward_torch(*arguments)
    fused = expert_choice._rows_backward_triton(*arguments)
    for one, two in zip(fused, plain, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.interpreted
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_programs_equal_torch(shape: tuple[int, int, int, int]) -> None:
    check(shape, "cpu")


@pytest.mark.interpreted
def test_what_is_not_finite_stays_so() -> None:
    means, experts, *_ = given(3, 5, 8, 4, torch.float32)
    means[1, 2] = torch.nan
    for choice in (
        expert_choice._forward_torch(means, experts),
        expert_choice._forward_triton(means, experts),
    ):
        assert isinstance(choice, Choice)
        assert choice.added.isnan().all(1).tolist() == [False, True, False]
        assert choice.probabilities.isnan().all(1).tolist() == [False, True, False]
        assert 0 <= int(choice.chosen.min()) <= int(choice.chosen.max()) < 5


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (100, 9, 1536, 768), (10, 9, 4096, 2048)], ids=str)
def test_the_programs_equal_torch_on_a_gpu(shape: tuple[int, int, int, int]) -> None:
    check(shape, "cuda")
