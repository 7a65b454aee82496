"""Classifiers of models of transformers, against the models' and processors' own results."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import ramen
from ramen import Preprocess, ZeroShotClassifier, prompts, testing
from ramen.methods._losses import entropy
from ramen.models.transformers import image_preprocess
from tests.helpers.transformers_models import (
    FAMILIES,
    SIZE,
    processor,
    random_model,
    save_in_cache,
    save_model,
)

transformers = pytest.importorskip("transformers")
CLASSES = ["cat", "polar bear", "fire truck"]


def noise(count: int = 3) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def photo(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def classifier(family: str, **options: Any) -> tuple[ZeroShotClassifier, Any]:
    model = random_model(family)
    options.setdefault("templates", prompts.SINGLE)
    return ZeroShotClassifier.from_transformers(model, CLASSES, processor(family), **options), model


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_equal_the_models_own(family: str) -> None:
    clf, model = classifier(family)
    length = 32 if family == "Siglip" else 24
    texts = processor(family)(
        text=[prompts.SINGLE[0].format(name) for name in CLASSES],
        padding="max_length",
        max_length=length,
        return_tensors="pt",
    )
    images = noise()
    own = model(pixel_values=images, **texts)
    torch.testing.assert_close(clf.encode(images), own.image_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(clf.class_embeddings, own.text_embeds, rtol=0, atol=1e-5)
    assert (own.text_embeds[0] - own.text_embeds[1]).norm() > 0.01
    torch.testing.assert_close(clf.logits(clf.encode(images)), own.logits_per_image, rtol=0, atol=1e-4)
    assert clf.logit_bias == (-7.0 if family == "Siglip" else 0.0)
    assert clf.encoder.fused, clf.encoder.plain_reason


@pytest.mark.parametrize("family", ["CLIP", "Siglip"])
def test_sample_gradients_equal_single_backward_passes(family: str) -> None:
    images = noise()
    fused, model = classifier(family)
    plain, _ = classifier(family, fused=False)
    found = []
    for clf in (fused, plain):
        rows = clf.encoder.base.expand(len(images), -1).clone().requires_grad_()
        found.append(clf.gradient(entropy(clf.logits(clf.encode(images, rows))).sum(), rows))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)
    assert plain.encoder.plain_reason == "fused=False"

    names = [piece.name.removeprefix("model.") for piece in fused.encoder.layout]
    parameters = dict(model.named_parameters())
    for image, gradient in zip(images, found[0], strict=True):
        features = model.get_image_features(pixel_values=image[None])
        unit = nn.functional.normalize(getattr(features, "pooler_output", features), dim=-1)
        logits = model.logit_scale.exp().detach() * unit @ fused.class_embeddings.T
        own = torch.autograd.grad(entropy(logits).sum(), [parameters[name] for name in names])
        expected = torch.cat([part.flatten() for part in own])
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_as_a_function_of_norm_parameters(family: str) -> None:
    """Against the same model, whose norm parameters are written over one after the other."""
    clf, _ = classifier(family)
    texts = ["a photo of a cat", "the polar bear", "good"]
    prompts = clf.encode_text.affine_prompts(texts, 2)
    torch.testing.assert_close(prompts(prompts.base), clf.encode_text(texts), rtol=0, atol=1e-6)
    moved = prompts.base + 0.1 * torch.randn(len(prompts.base), generator=torch.Generator().manual_seed(0))
    found = prompts(moved)
    assert (found - clf.encode_text(texts)).abs().max() > 1e-3

    tower, values = clf.encode_text._model, dict(clf.encode_text._model.named_parameters())
    written = {piece.name: moved[piece.start : piece.stop] for piece in prompts._flat.layout}
    originals = {name: values[name].detach().clone() for name in written}
    assert torch.equal(torch.cat([value.flatten() for value in originals.values()]), prompts.base)
    try:
        for name, value in written.items():
            values[name].data.copy_(value.view_as(values[name]))
        torch.testing.assert_close(found, clf.encode_text(texts), rtol=0, atol=1e-6)
    finally:
        for name, value in originals.items():
            values[name].data.copy_(value)
    assert tower.training is False
    affine = moved.requires_grad_()
    target = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((prompts(affine) * target).sum(), affine)
    step = 1e-3 * gradient / gradient.norm()  # along it the product grows as fast as its length says
    with torch.no_grad():
        ends = [float((prompts(affine + sign * step) * target).sum()) for sign in (1, -1)]
    assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(float(gradient.norm()), rel=1e-2)


@pytest.mark.parametrize("family", ["CLIP", "Siglip", "ChineseCLIP"])
@pytest.mark.parametrize("size", [(50, 33), (31, 64), (224, 301), (7, 5), (32, 32), (43, 32)])
def test_preprocessing_is_the_processors_own(family: str, size: tuple[int, int]) -> None:
    """Bit for bit with Pillow; torchvision resizes random pixels to others, by up to seven levels of 255."""
    image = photo(*size)
    for pillow in (True, False):
        own = processor(family, pillow=pillow).image_processor
        ours = image_preprocess(own)(image)
        theirs = own(images=image, return_tensors="pt")["pixel_values"]
        if pillow:
            assert torch.equal(ours, theirs)
        else:
            levels = (ours - theirs).abs() * 255 * min(own.image_std)
            assert levels.max() < 8
            assert levels.mean() < 0.5


def test_other_processors() -> None:
    larger = transformers.CLIPImageProcessor(size={"shortest_edge": 40}, crop_size=SIZE, resample=2)
    found = image_preprocess(larger)
    assert (found.size, found.resize_to, found.interpolation) == ((SIZE, SIZE), 40, "bilinear")
    pillow = transformers.CLIPImageProcessorPil(size={"shortest_edge": 40}, crop_size=SIZE, resample=2)
    image = photo(61, 47)
    assert torch.equal(found(image), pillow(images=image, return_tensors="pt")["pixel_values"])
    plain = transformers.CLIPImageProcessor(size={"shortest_edge": 40}, crop_size=SIZE, do_normalize=False)
    assert image_preprocess(plain).mean == (0.0, 0.0, 0.0)


def test_a_given_preprocessing_and_scale_override_the_models() -> None:
    chosen = Preprocess(SIZE, interpolation="bilinear")
    clf, _ = classifier("CLIP", preprocess=chosen, logit_scale=3.0)
    assert clf.preprocess == chosen
    assert clf.logit_scale == 3.0


def test_a_folder_and_a_loaded_model_are_the_same(tmp_path: Path) -> None:
    folder = save_model("CLIP", tmp_path)
    stored = ZeroShotClassifier.from_transformers(folder, CLASSES, templates=prompts.SINGLE)
    loaded, model = classifier("CLIP")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = noise()
    assert torch.equal(stored.encode(images), loaded.encode(images))
    assert torch.equal(stored.class_embeddings, loaded.class_embeddings)
    assert stored.preprocess == loaded.preprocess
    assert stored.fingerprint() == loaded.fingerprint()
    ramen.create("ramen", loaded).predict(images)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_other_classes_and_templates() -> None:
    clf, _ = classifier("Siglip")
    other = clf.with_classes(["good cat", "fire"])
    assert other.logit_bias == clf.logit_bias
    assert other.encoder is clf.encoder
    assert other.class_embeddings.shape == (2, clf.class_embeddings.shape[1])


def test_classes_that_the_tokenizer_cannot_distinguish() -> None:
    long = ["cat " * 30 + "a", "cat " * 30 + "of"]
    with pytest.raises(ValueError, match="reads at most 24 tokens"):
        ZeroShotClassifier.from_transformers(random_model("CLIP"), long, processor("CLIP"))


def test_half_precision() -> None:
    half, _ = classifier("CLIP", dtype="float16")
    full, _ = classifier("CLIP")
    assert half.dtype == torch.float16
    assert torch.equal(half.class_embeddings, full.class_embeddings)
    assert (half.encode(noise()) - full.encode(noise())).abs().max() < 0.02


def test_the_contract() -> None:
    clf, _ = classifier("Siglip")
    assert "passes" in testing.check_method("ramen", clf)


# -- files and names ------------------------------------------------------------------------------------


def test_a_model_in_the_hubs_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_in_cache("CLIP", "somebody/small-clip", tmp_path)
    monkeypatch.setattr("ramen.models.transformers.check_hub_repository", lambda *given: pytest.fail("asked"))
    clf = ZeroShotClassifier.from_transformers("somebody/small-clip", CLASSES, cache_dir=tmp_path)
    assert clf.encoder.fused


def test_a_model_that_cannot_be_downloaded_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    start = time.perf_counter()
    with pytest.raises(
        ConnectionError, match=r"nobody/nothing is not, or not as a whole, in the cache .* set"
    ):
        ZeroShotClassifier.from_transformers("nobody/nothing", CLASSES, cache_dir=tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("ramen.models.checkpoints.why_unreachable", lambda *given: "no answer")
    with pytest.raises(
        ConnectionError, match=r"nothing/resolve/main/config.json cannot be reached: no answer"
    ):
        ZeroShotClassifier.from_transformers("nobody/nothing", CLASSES, cache_dir=tmp_path)
    assert time.perf_counter() - start < 20


def small(kind: str) -> Any:
    """A model of one tower, or one that takes images of any size."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    if kind == "ViT":
        return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32))
    text = sizes | {"vocab_size": 40, "max_position_embeddings": 16}
    return transformers.Siglip2Model(transformers.Siglip2Config(text_config=text, vision_config=sizes))


def load(name_or_model: object, processor: Any = None) -> ZeroShotClassifier:
    return ZeroShotClassifier.from_transformers(name_or_model, CLASSES, processor)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        *[(lambda n=n: load(n), ValueError, "^name_or_model") for n in ("no name", "nofolder", "a/b/c")],
        (lambda: load(3), TypeError, "^name_or_model"),
        (lambda: load(Path(__file__).parent), ValueError, "^name_or_model: .*AutoModel"),
        (lambda: load(small("ViT"), processor("CLIP")), ValueError, "^name_or_model: ViTModel"),
        (lambda: load(small("Siglip2"), processor("Siglip")), ValueError, "NaFlex"),
        (lambda: load(random_model("CLIP")), ValueError, "^processor"),
        (lambda: load(random_model("CLIP"), processor("CLIP").image_processor), ValueError, "^processor"),
        *[
            (lambda o=o: image_preprocess(transformers.CLIPImageProcessor(**o)), ValueError, "^preprocess")
            for o in (
                {"do_resize": False},
                {"do_center_crop": False},
                {"do_rescale": False},
                {"rescale_factor": 1 / 128},
                {"resample": 4},
            )
        ],
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()


def test_without_transformers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match="transformers: pip install"):
        load(tmp_path)
