"""The paper's theorem, numerically: what one entropy step does to the importance of features."""

import pytest
import torch
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory
from ramen.methods._losses import entropy

WIDTH, IMAGES, LR = 12, 40, 0.1


class OneNorm(nn.Module):
    """One normalisation layer, then nothing: the setting of the theorem."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(1))


@pytest.mark.parametrize("seed", range(5))
def test_feature_importance_after_one_step(seed: int) -> None:
    """Gradients of the library, aggregated by its memory, against the closed form for r_h."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(IMAGES, 3, 2, 2, generator=generator, dtype=torch.float64)
    t0, t1 = torch.randn(2, WIDTH, generator=generator, dtype=torch.float64)
    encoder = AffineEncoder(OneNorm().double())
    affine = encoder.base.expand(IMAGES, -1).detach().requires_grad_()
    logits = encoder(pixels, affine, normalize=False) @ torch.stack([t0, t1], 1)
    entropies = entropy(logits)
    gradients = encoder.gradient(entropies.sum(), affine)

    # one step of gradient descent on the mean entropy of the support set: all images, weight 1/n each
    memory = Memory(MemoryPlan(1, IMAGES, WIDTH, len(encoder.base), codec="fp32"))
    keys = torch.randn(IMAGES, WIDTH, generator=generator)
    queue = torch.zeros(IMAGES, dtype=torch.int64)
    memory.insert(memory.stage(queue, keys, gradients, entropies.detach()))
    selection = memory.select(keys[:1], IMAGES)
    mean_gradient = memory.aggregate(selection, torch.full(selection.rows.shape, 1 / IMAGES))[0].double()
    weight = 1 - LR * mean_gradient[:WIDTH]
    assert (weight > 0).all()  # the theorem's condition on the step size
    importance = weight.abs() / weight.abs().sum()

    v = nn.functional.layer_norm(pixels.flatten(1), (WIDTH,))
    p = logits.detach().softmax(1)
    moment = torch.einsum("j,jh,jl->hl", p[:, 0] * p[:, 1], v, v) / IMAGES
    delta = t1 - t0
    gain = delta * (moment @ delta)
    torch.testing.assert_close(importance, (1 + LR * gain) / (WIDTH + LR * gain.sum()), rtol=0, atol=1e-8)
    assert (importance - 1 / WIDTH).abs().max() > 1e-4  # the step did something
    # features whose gain is above the average are amplified, the others suppressed
    assert torch.equal(importance > 1 / WIDTH, gain > gain.mean())
