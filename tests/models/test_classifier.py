"""The zero-shot classifier: of open_clip, against open_clip; of one's own modules; and what is refused."""

import json
import sys
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import ramen
from ramen import ZeroShotClassifier, prompts, testing
from tests.helpers.tiny_models import TINY_VIT, add_tiny_model

CLASSES = ["cat", "polar_bear", "fire truck"]


def open_clip_logits(model: nn.Module, name: str, images: Tensor, templates: tuple[str, ...]) -> Tensor:
    """The oracle: open_clip's own encoders, class by class."""
    tokenizer = open_clip.get_tokenizer(name)
    with torch.no_grad():
        z = model.encode_image(images, normalize=True)
        columns = []
        for label in ["cat", "polar bear", "fire truck"]:
            texts = model.encode_text(tokenizer([t.format(label) for t in templates]), normalize=True)
            columns.append(nn.functional.normalize(texts.mean(0), dim=0))
        bias = 0 if model.logit_bias is None else model.logit_bias  # SigLIP
        return model.logit_scale.exp() * z @ torch.stack(columns, 1) + bias


@pytest.fixture(scope="module")
def checkpoint(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = open_clip.create_model(tiny_model)
    model.logit_scale.data.fill_(3.0)
    path = tmp_path_factory.mktemp("weights") / "tiny.pt"
    torch.save(model.state_dict(), path)
    return path


VISION = {
    "vit": TINY_VIT,
    "resnet": {"layers": [1, 1, 1, 1], "width": 8, "head_width": 16},
    "convnext": {
        "timm_model_name": "convnext_atto",
        "timm_pool": "",
        "timm_proj": "linear",
        "timm_drop_path": 0.1,
        "image_size": 64,
    },
    "map-pooling": {  # as SigLIP
        "timm_model_name": "vit_tiny_patch16_224",
        "timm_pool": "map",
        "timm_proj": "",
        "image_size": 224,
    },
}


@pytest.mark.parametrize("kind", VISION)
@pytest.mark.parametrize("templates", ["ensemble", "single"])
def test_equals_open_clip(kind: str, templates: str, tmp_path: Path) -> None:
    extra = {"custom_text": True, "init_logit_bias": -10} if kind == "map-pooling" else {}
    name = add_tiny_model(tmp_path, f"tiny-{kind}", VISION[kind], **extra)
    torch.manual_seed(0)
    model = open_clip.create_model(name).eval()
    weights = tmp_path / "model.safetensors"
    save_file(model.state_dict(), weights)

    clf = ZeroShotClassifier.from_open_clip(name, weights, CLASSES, templates)
    size = model.visual.image_size
    size = size if isinstance(size, tuple) else (size, size)
    images = torch.randn(3, 3, *size)
    expected = open_clip_logits(model, name, images, prompts.TEMPLATE_SETS[templates])
    torch.testing.assert_close(clf.logits(clf.encode(images)), expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(
        clf.encode(images), model.encode_image(images, normalize=True), rtol=0, atol=1e-5
    )
    assert clf.classes == ("cat", "polar bear", "fire truck")
    assert clf.logit_scale == pytest.approx(model.logit_scale.exp().item())
    assert clf.encode_text(["a text", "another"]).shape == (2, 16)


def test_preprocessing_is_the_models_own(tiny_model: str) -> None:
    _, _, theirs = open_clip.create_model_and_transforms(tiny_model)
    clf = ZeroShotClassifier.from_open_clip(tiny_model, None, CLASSES)
    image = Image.effect_mandelbrot((50, 40), (-2, -1, 1, 1), 50).convert("RGB")
    assert torch.equal(clf.preprocess([image])[0], theirs(image))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_keeps_norms_and_class_embeddings_in_fp32(
    tiny_model: str, checkpoint: Path, dtype: str
) -> None:
    full = ZeroShotClassifier.from_open_clip(tiny_model, checkpoint, CLASSES)
    half = ZeroShotClassifier.from_open_clip(tiny_model, checkpoint, CLASSES, dtype=dtype)
    assert half.dtype == getattr(torch, dtype)
    assert half.encoder.weights()["conv1.weight"].dtype == half.dtype
    assert torch.equal(half.encoder.base, full.encoder.base)
    assert torch.equal(half.class_embeddings, full.class_embeddings)
    images = torch.randn(4, 3, 32, 32)
    assert (half.encode(images) - full.encode(images)).abs().max() < 0.02
    assert half.logits(half.encode(images)).dtype == torch.float32


def test_openai_tags_get_their_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    """open_clip builds ViT-B-32 with GELU and only warns when OpenAI's weights want QuickGELU."""
    asked = {}

    def create_model(name: str, **kwargs: object) -> None:
        asked.update(kwargs, name=name)
        raise RuntimeError("far enough")

    monkeypatch.setattr(open_clip, "create_model", create_model)
    monkeypatch.setattr("ramen.models.open_clip.check_downloads", lambda *given: None)
    for tag, expected in (("openai", True), ("laion2b_s34b_b79k", False)):
        with pytest.raises(ValueError, match=f"pretrained: '{tag}' cannot be loaded as ViT-B-32: far enough"):
            ZeroShotClassifier.from_open_clip("ViT-B-32", tag, CLASSES)
        assert asked["force_quick_gelu"] is expected
        assert asked["weights_only"] is True


def test_bring_your_own_encoder() -> None:
    """The five lines of the README, without open_clip."""
    encoder = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(512, 6))
    clf = ZeroShotClassifier(encoder, torch.randn(4, 6), logit_scale=20.0)
    assert clf.classes == ("0", "1", "2", "3")
    out = ramen.create("ramen", clf).predict(torch.randn(5, 3, 32, 32))
    assert out.logits.shape == (5, 4)
    with pytest.raises(ValueError, match="built without preprocessing: pass preprocess="):
        clf.preprocess(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def test_templates_are_averaged() -> None:
    vectors = torch.randn(4, 3, 16)
    clf = ZeroShotClassifier(testing.small_tower(), vectors)
    unit = nn.functional.normalize(vectors, dim=-1)
    torch.testing.assert_close(clf.class_embeddings, nn.functional.normalize(unit.mean(1), dim=-1))
    torch.testing.assert_close(clf.template_embeddings, unit)
    assert ZeroShotClassifier(testing.small_tower(), vectors[:, 0]).template_embeddings is None


def test_fingerprints_tell_models_apart() -> None:
    prints = [
        testing.small_classifier().fingerprint(),
        testing.small_classifier(seed=1).fingerprint(),
        testing.small_classifier(classes=4).fingerprint(),
        testing.small_classifier(dtype="float16").fingerprint(),
    ]
    assert prints[0] == testing.small_classifier().fingerprint()
    assert all(p != prints[0] for p in prints[1:])


def test_a_tokenizer_whose_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    name = add_tiny_model(tmp_path, "tiny-siglip", TINY_VIT)  # open_clip goes by the name
    with pytest.raises(
        ModuleNotFoundError, match=r"tokenizer of tiny-siglip needs the package transformers: pip"
    ):
        ZeroShotClassifier.from_open_clip(name, None, CLASSES)


def test_built_under_inference_mode_or_autocast(tiny_model: str, checkpoint: Path) -> None:
    images = torch.randn(4, 3, 32, 32)
    expected = ramen.create("ramen", testing.small_classifier()).predict(images).logits
    with torch.inference_mode():
        clf = testing.small_classifier()
    assert torch.equal(ramen.create("ramen", clf).predict(images).logits, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        clf = ZeroShotClassifier(testing.small_tower(), torch.eye(5, 16))
    assert clf.class_embeddings.dtype == torch.float32
    # its tensors take part in backward passes like those of one that was built outside
    outside = ZeroShotClassifier.from_open_clip(tiny_model, checkpoint, CLASSES)
    with torch.inference_mode():
        inside = ZeroShotClassifier.from_open_clip(tiny_model, checkpoint, CLASSES)
    answer = ramen.create("ramen", inside).predict(images)
    assert torch.equal(answer.logits, ramen.create("ramen", outside).predict(images).logits)
    assert not torch.equal(answer.logits, answer.zero_shot_logits)


def test_what_a_checkpoint_file_does_not_hold_can_be_given(tiny_model: str, checkpoint: Path) -> None:
    own = ramen.Preprocess(32, mean=(0.5,) * 3, std=(0.5,) * 3, resize_mode="squash")
    plain = ZeroShotClassifier.from_open_clip(tiny_model, checkpoint, CLASSES)
    quick = ZeroShotClassifier.from_open_clip(
        tiny_model, checkpoint, CLASSES, preprocess=own, quick_gelu=True
    )
    image = Image.effect_mandelbrot((50, 40), (-2, -1, 1, 1), 50).convert("RGB")
    assert torch.equal(quick.preprocess(image), own(image))
    images = torch.randn(2, 3, 32, 32)
    assert not torch.equal(plain.encode(images), quick.encode(images))


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_weights_that_do_not_fit_or_cannot_be_read(tiny_model: str, checkpoint: Path, tmp_path: Path) -> None:
    weights = torch.load(checkpoint, weights_only=True)
    del weights["visual.ln_post.weight"]
    torch.save(weights, tmp_path / "short.pt")
    (tmp_path / "damaged.safetensors").write_bytes(b"\x10" * 100)
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "scripted.pt")
    for model, file, reason in (
        ("ViT-S-32-alt", checkpoint, "text pos_embed width changed"),
        (tiny_model, tmp_path / "short.pt", "Missing key.*visual.ln_post.weight"),
        (tiny_model, tmp_path / "scripted.pt", "it lacks .*; it has besides bias, weight"),
        (tiny_model, tmp_path / "damaged.safetensors", ""),
    ):
        with pytest.raises(ValueError, match=rf"(?s){file.name}' cannot be loaded as {model}.*{reason}"):
            ZeroShotClassifier.from_open_clip(model, file, CLASSES)


def test_a_folder_without_weights(tmp_path: Path, tiny_model: str) -> None:
    config = {"model_cfg": open_clip.get_model_config(tiny_model)}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"model: open_clip cannot load local-dir:.*could not be loaded"):
        ZeroShotClassifier.from_open_clip(f"local-dir:{tmp_path}", None, CLASSES)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("quick_gelu", [True, False])
def test_openais_archives_are_read(quick_gelu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, in half precision, as OpenAI distributes its models; the activation is found in the program."""
    name = add_tiny_model(tmp_path, f"tiny-traced-{quick_gelu}", TINY_VIT)
    torch.manual_seed(0)
    model = open_clip.create_model(name, force_quick_gelu=quick_gelu).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    inputs = {"encode_image": (torch.randn(1, 3, 32, 32),), "encode_text": (torch.zeros(1, 77).long(),)}
    traced = torch.jit.trace_module(model, inputs, check_trace=False)
    path = tmp_path / "ViT-tiny.pt"
    torch.jit.save(traced.half(), path)
    model.float()  # it shares its weights with what was traced

    monkeypatch.setattr(torch.jit, "load", lambda *given, **options: pytest.fail("the program was loaded"))
    clf = ZeroShotClassifier.from_open_clip(name, path, CLASSES)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = open_clip_logits(model, name, images, prompts.ENSEMBLE)
    torch.testing.assert_close(clf.logits(clf.encode(images)), expected, rtol=0, atol=2e-4)


def test_a_pickle_is_not_executed(tiny_model: str, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "executed",))

    path = tmp_path / "bomb.pt"
    torch.save({"state_dict": Bomb()}, path)
    with pytest.raises(ValueError, match=r"bomb\.pt' cannot be loaded"):
        ZeroShotClassifier.from_open_clip(tiny_model, path, CLASSES)
    assert not (tmp_path / "executed").exists()


LONG = "a very long name " * 40


@pytest.mark.parametrize(
    ("first", "second"), [(LONG + "with one end", LONG + "with another"), ("Polar Bear", "polar bear")]
)
def test_names_that_the_tokenizer_cannot_distinguish(tiny_model: str, first: str, second: str) -> None:
    """open_clip's tokenizer cuts at 77 tokens, and ignores case."""
    with pytest.raises(ValueError, match="at most 77 tokens") as error:
        ZeroShotClassifier.from_open_clip(tiny_model, None, ["fox", first, second])
    assert f"{first.strip()!r} and {second.strip()!r}" in str(error.value)
    allowed = ZeroShotClassifier.from_open_clip(
        tiny_model, None, ["fox", first, second], allow_same_names=True
    )
    assert allowed.num_classes == 3


def test_names_that_differ_in_one_template_are_enough(tiny_model: str) -> None:
    """The end of these names is cut off in the long template, but not in the short one."""
    name = "long " * 60
    names = [name + "cat", name + "dog"]
    templates = ("a very long template " * 4 + "with a {}", "{}")
    clf = ZeroShotClassifier.from_open_clip(tiny_model, None, names, templates)
    assert not torch.equal(clf.class_embeddings[0], clf.class_embeddings[1])
    with pytest.raises(ValueError, match="same tokens for"):
        ZeroShotClassifier.from_open_clip(tiny_model, None, names, templates[:1])


def test_classes_that_are_alike_in_different_templates_differ() -> None:
    """a is like b in the first template and like c in the second, and so on: no two are alike in both."""
    numbers = {"1a": 0, "1b": 0, "1c": 1, "1d": 1, "2a": 0, "2b": 1, "2c": 0, "2d": 1}
    prompts.check_distinct_prompts(
        lambda texts: torch.tensor([[numbers[text]] for text in texts]), list("abcd"), ["1{}", "2{}"]
    )


def test_other_classes_share_the_encoder() -> None:
    clf = testing.small_classifier()
    other = clf.with_classes(["north", "south"])
    assert other.encoder is clf.encoder
    assert other.classes == ("north", "south")
    assert other.fingerprint()["encoder"] == clf.fingerprint()["encoder"]
    again = clf.with_classes(clf.classes)
    torch.testing.assert_close(again.class_embeddings, clf.class_embeddings)
    assert again.preprocess.size == clf.preprocess.size
