"""Prompts as a function of norm parameters against text towers whose norm layers are written over."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.models.open_clip import load_open_clip, load_tokenizer, text_encoder
from ramen.models.text import AffineTextEncoder
from tests.helpers.tiny_models import TINY_VIT, add_tiny_model

TEXTS = ["a photo of a cat.", "a photo of a traffic light.", "art", "a b c d e", "dogs"]
TEXT = {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
TOWERS: dict[str, dict] = {
    "clip": {},
    "custom": {"custom_text": True},
    "bidirectional": {"custom_text": True, "text_cfg": TEXT | {"no_causal_mask": True, "pool_type": "last"}},
}


def loaded(folder: Path, kind: str) -> tuple[nn.Module, object]:
    settings = {"text_cfg": TEXT, **TOWERS[kind]}
    name = add_tiny_model(folder, f"AffinePrompts-{kind}", TINY_VIT, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip = load_open_clip(name, None)
    return clip.double(), load_tokenizer(name)


def text_norms(clip: nn.Module) -> list[nn.LayerNorm]:
    """Those of the text tower in module order, by their places in open_clip's models."""
    tower = clip.text if hasattr(clip, "text") else clip
    blocks = [norm for block in tower.transformer.resblocks for norm in (block.ln_1, block.ln_2)]
    return [*blocks, tower.ln_final]


def with_norms(clip: nn.Module, affine: Tensor) -> nn.Module:
    """A copy with this flat vector in its text tower: layer after layer, weight before bias."""
    other, place = copy.deepcopy(clip), 0
    for norm in text_norms(other):
        for parameter in (norm.weight, norm.bias):
            parameter.requires_grad_(True)
            with torch.no_grad():
                parameter.copy_(affine[place : place + parameter.numel()])
            place += parameter.numel()
    assert place == len(affine)
    return other


@pytest.mark.parametrize("kind", TOWERS)
@pytest.mark.parametrize("at_once", [100, 2])
def test_equals_a_tower_that_is_written_over(tmp_path: Path, kind: str, at_once: int) -> None:
    clip, tokenizer = loaded(tmp_path, kind)
    before = copy.deepcopy(clip.state_dict())
    encode_text = text_encoder(clip, tokenizer)
    assert isinstance(encode_text, AffineTextEncoder)
    prompts = encode_text.affine_prompts(TEXTS, at_once)
    torch.testing.assert_close(prompts(prompts.base), encode_text(TEXTS), rtol=0, atol=1e-12)

    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(len(prompts.base), generator=generator, dtype=torch.float64)
    affine = (prompts.base + 0.1 * noise).requires_grad_()
    other = with_norms(clip, affine.detach())
    expected = F.normalize(other.encode_text(tokenizer(TEXTS)), dim=1)
    found = prompts(affine)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (found - encode_text(TEXTS)).abs().max() > 0.01

    target = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((found * target).sum(), affine)
    parameters = [p for norm in text_norms(other) for p in (norm.weight, norm.bias)]
    slow = torch.autograd.grad((expected * target).sum(), parameters)
    torch.testing.assert_close(gradient, torch.cat([part.flatten() for part in slow]), rtol=0, atol=1e-10)
    for name, value in clip.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(p.requires_grad for p in clip.parameters())


def test_an_image_tower_in_the_model_is_no_part_of_it(tmp_path: Path) -> None:
    clip, tokenizer = loaded(tmp_path, "clip")
    assert any(isinstance(layer, nn.LayerNorm) for layer in clip.visual.modules())
    with_image_tower = text_encoder(clip, tokenizer).affine_prompts(TEXTS, 100).base
    clip.visual = None
    assert torch.equal(with_image_tower, text_encoder(clip, tokenizer).affine_prompts(TEXTS, 100).base)


def test_a_tower_in_fp16_has_parameters_in_fp32(tmp_path: Path) -> None:
    clip, tokenizer = loaded(tmp_path, "clip")
    prompts = text_encoder(clip.to(torch.bfloat16), tokenizer).affine_prompts(TEXTS, 100)
    assert prompts.base.dtype == torch.float32
    assert prompts(prompts.base).dtype == torch.float32
