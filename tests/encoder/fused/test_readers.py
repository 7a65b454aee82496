"""The fused passes of towers of timm and transformers against the modules' own passes and autograd."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm.layers
import torch
from open_clip.timm_model import TimmModel
from timm.models.eva import Eva
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder
from ramen.methods._losses import entropy

SIZE, PATCH, WIDTH, OUTPUT = 33, 8, 32, 12  # pixels beyond the last whole patch are not seen
PLAIN: dict[str, Any] = {
    "patch_size": PATCH,
    "embed_dim": WIDTH,
    "depth": 2,
    "num_heads": 4,
    "img_size": SIZE,
}


def shaken(module: nn.Module) -> nn.Module:
    """All that trained towers have and fresh ones have not: scales, biases and norms that differ."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = parameter.data.double() + (0.3 if parameter.ndim == 1 else 0.05) * noise
    return module.double().eval()


def of_timm(**options: Any) -> nn.Module:
    return shaken(VisionTransformer(**{**PLAIN, "num_classes": OUTPUT, **options}))


def eva(**options: Any) -> nn.Module:
    return shaken(Eva(**{**PLAIN, "num_classes": OUTPUT, "use_rot_pos_emb": True, **options}))


def in_open_clip(proj: str) -> nn.Module:
    module = TimmModel("vit_tiny_patch16_224", OUTPUT, image_size=SIZE, pool="", proj=proj)
    module.trunk = VisionTransformer(**{**PLAIN, "embed_dim": 192, "num_heads": 3, "num_classes": 0})
    return shaken(module)


class ImageFeatures(nn.Module):
    """The image half of a model of transformers, as somebody wraps it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.vision_model = model.vision_model
        self.visual_projection = getattr(model, "visual_projection", nn.Identity())

    def forward(self, images: Tensor) -> Tensor:
        return self.visual_projection(self.vision_model(pixel_values=images).pooler_output)


def of_transformers(family: str, **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    vision = {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": SIZE,
        "patch_size": PATCH,
        **options,
    }
    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"vocab_size": 9, "max_position_embeddings": 5}
    projection = {} if family == "Siglip" else {"projection_dim": OUTPUT}
    config = getattr(transformers, f"{family}Config")(text_config=text, vision_config=vision, **projection)
    return shaken(ImageFeatures(getattr(transformers, f"{family}Model")(config)))


TOWERS: dict[str, Callable[[], nn.Module]] = {
    "deit": of_timm,
    "features": partial(of_timm, num_classes=0),
    "clip": partial(of_timm, pre_norm=True, act_layer=timm.layers.QuickGELU, norm_layer=nn.LayerNorm),
    "mean": partial(of_timm, global_pool="avg"),
    "largest": partial(of_timm, global_pool="max"),
    "gated mlp without a gate": partial(of_timm, mlp_layer=timm.layers.GatedMlp),
    "mean with a norm before it": partial(of_timm, global_pool="avg", fc_norm=False),
    "dinov2": partial(of_timm, reg_tokens=3, no_embed_class=True, init_values=0.3, num_classes=0),
    "dinov2 giant": partial(of_timm, init_values=0.3, mlp_layer=timm.layers.SwiGLUPacked, act_layer=nn.SiLU),
    "siglip": partial(of_timm, class_token=False, global_pool="map", act_layer="gelu_tanh"),
    "norms of queries and keys": partial(of_timm, qk_norm=True),
    "norms inside": partial(of_timm, scale_attn_norm=True, scale_mlp_norm=True, qkv_bias=True),
    "without biases": partial(of_timm, qkv_bias=False, proj_bias=False),
    "eva02": partial(eva, swiglu_mlp=True, scale_mlp=True, scale_attn_inner=True, qkv_fused=False),
    "eva": partial(eva, init_values=0.2),
    "eva with packed gates": partial(eva, swiglu_mlp=True, global_pool="avg"),
    "dinov3": partial(
        eva,
        rope_rotate_half=True,
        num_reg_tokens=2,
        no_embed_class=True,
        use_abs_pos_emb=False,
    ),
    "deit in open_clip": partial(in_open_clip, "linear"),
    "mlp head in open_clip": partial(in_open_clip, "mlp"),
    "transformers clip": partial(of_transformers, "CLIP"),
    "transformers siglip": partial(of_transformers, "Siglip", hidden_act="gelu_pytorch_tanh"),
    "transformers chinese clip": partial(of_transformers, "ChineseCLIP"),
    "transformers altclip": partial(of_transformers, "AltCLIP"),
}


def entropies(embeddings: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    texts = torch.randn(embeddings.shape[1], 7, generator=generator, dtype=torch.float64)
    return entropy(10 * embeddings @ texts.to(embeddings)).sum()


@pytest.mark.parametrize("name", TOWERS)
def test_features_and_gradients_equal_the_modules_own(name: str) -> None:
    module = TOWERS[name]()
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)
    fused, plain = (AffineEncoder(module, example=images, fused=choice) for choice in (True, False))
    noise = torch.randn(3, len(plain.base), generator=generator, dtype=torch.float64)
    for affine in (plain.base, plain.base + 0.1 * noise):
        torch.testing.assert_close(fused(images, affine), plain(images, affine), rtol=0, atol=1e-11)
        gradients = []
        for encoder in (fused, plain):
            leaf = affine.clone().requires_grad_()
            gradients.append(encoder.gradient(entropies(encoder(images, leaf)), leaf))
        assert gradients[1].abs().max() > 1e-5
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["dinov2", "siglip", "eva02", "transformers clip"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_agree_to_their_rounding(name: str, dtype: torch.dtype) -> None:
    module = TOWERS[name]().float()
    images = torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    fused, exact = AffineEncoder(module, example=images, dtype=dtype), AffineEncoder(module, example=images)
    assert fused.fused, fused.plain_reason
    tolerance = {torch.float32: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}[dtype]
    rows = exact.base.expand(3, -1).clone().requires_grad_()
    torch.testing.assert_close(fused(images, rows), exact(images, rows), rtol=0, atol=tolerance)
    one, other = (e.gradient(entropies(e(images, rows)), rows) for e in (fused, exact))
    assert torch.cosine_similarity(one, other).min() > 1 - tolerance


@pytest.mark.parametrize(
    "make",
    [
        partial(of_timm, act_layer=nn.ReLU),
        partial(of_timm, block_fn=ParallelScalingBlock),
        partial(of_timm, embed_norm_layer=nn.LayerNorm),
        partial(eva, rope_type="mixed"),
        partial(eva, use_post_norm=True),
        lambda: shaken(timm.create_model("mobilenetv3_small_050", num_classes=OUTPUT)),
    ],
)
def test_what_is_not_covered_is_computed_by_its_module_and_says_why(make: Callable[[], nn.Module]) -> None:
    encoder = AffineEncoder(make().float(), example=torch.zeros(1, 3, SIZE, SIZE))
    assert not encoder.fused
    assert encoder.plain_reason
