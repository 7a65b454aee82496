"""What is given as an encoder but is more than one: models with two towers, compiled modules."""

import open_clip
import pytest
import torch
from torch import nn

from ramen import AffineEncoder, ZeroShotClassifier, testing
from tests.helpers.transformers_models import FAMILIES, SIZE, random_model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_image_half_of_a_whole_model_of_transformers(family: str) -> None:
    pytest.importorskip("transformers")
    model = random_model(family)
    encoder = AffineEncoder(model)
    images = torch.randn(3, 3, SIZE, SIZE)
    with torch.no_grad():
        features = model.get_image_features(pixel_values=images)
        own = getattr(features, "pooler_output", features)
        torch.testing.assert_close(encoder(images, normalize=False), own, rtol=1e-5, atol=1e-5)
    assert encoder.fused, encoder.plain_reason
    assert not any("text" in name for name in encoder.weights())
    assert hasattr(model, "text_model")
    assert ZeroShotClassifier(model, torch.randn(4, own.shape[1])).image_size == (SIZE, SIZE)


def test_vision_models_of_transformers_return_objects() -> None:
    transformers = pytest.importorskip("transformers")
    config = random_model("CLIP").vision_model.config
    config.projection_dim = 12
    images = torch.randn(3, 3, SIZE, SIZE)
    for kind, part in (
        ("CLIPVisionModel", "pooler_output"),
        ("CLIPVisionModelWithProjection", "image_embeds"),
    ):
        model = getattr(transformers, kind)(config).eval()
        encoder = AffineEncoder(model, example=images)
        with torch.no_grad():
            expected = getattr(model(pixel_values=images), part)
            torch.testing.assert_close(encoder(images, normalize=False), expected, rtol=0, atol=1e-5)
        assert encoder.fused, encoder.plain_reason


def test_the_image_tower_of_a_whole_model_of_open_clip(tiny_model: str) -> None:
    model = open_clip.create_model(tiny_model).eval()
    images = torch.randn(3, 3, 32, 32)
    encoder = AffineEncoder(model)
    with torch.no_grad():
        torch.testing.assert_close(
            encoder(images), model.encode_image(images, normalize=True), rtol=0, atol=1e-5
        )
    assert encoder.fused


def test_of_a_compiled_encoder_the_original_is_used() -> None:
    tower = testing.small_tower()
    with pytest.warns(UserWarning, match=r"compiled by torch.compile: its original module is used"):
        encoder = AffineEncoder(torch.compile(tower))
    assert encoder.fused
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(encoder(images), AffineEncoder(tower)(images))


def test_compiled_parts_are_refused() -> None:
    tower = nn.Sequential(torch.compile(testing.small_tower()), nn.LayerNorm(16))
    with pytest.raises(
        ValueError, match=r"must not contain parts that were compiled by torch.compile, got 0:"
    ):
        AffineEncoder(tower)
