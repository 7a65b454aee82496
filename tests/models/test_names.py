"""Models by name: each form, and what is said of those that cannot be loaded."""

import hashlib
import json

import pytest
import timm
import torch
import torchvision
from open_clip.transformer import VisionTransformer
from safetensors.torch import load_file, save_file

import ramen
from ramen import prompts
from ramen.doctor import model_check
from ramen.experiments.presets import list_models, list_presets, load_preset
from ramen.models.classifier import MissingPartError
from ramen.models.names import FORMS, full_name, load_model, recorded_name
from tests.helpers.transformers_models import save_model

CLASSES = ["cat", "dog", "fire_truck"]
TEMPLATES = [*prompts.ENSEMBLE, *prompts.SINGLE]
ARCHITECTURE = {
    "image_size": 32,
    "patch_size": 8,
    "width": 16,
    "layers": 1,
    "heads": 2,
    "mlp_ratio": 2.0,
    "output_dim": 8,
}


@pytest.fixture
def stored(tmp_path):
    torch.manual_seed(0)
    save_file(VisionTransformer(**ARCHITECTURE).half().state_dict(), tmp_path / "vision.safetensors")
    texts = {"birds": torch.randn(2, 8, 8), "pets": torch.randn(3, 8, 8)}
    save_file(texts, tmp_path / "text_features.safetensors")
    config = {
        "architecture": ARCHITECTURE,
        "logit_scale": 20.0,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "templates": TEMPLATES,
        "birds": {"classes": ["tit", "owl"]},
        "pets": {"classes": CLASSES},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_stored_tower(stored):
    """The features are those of the data set's classes, and answers those of a plain tower."""
    classifier = load_model(f"stored:{stored}", CLASSES)
    assert classifier.classes == ("cat", "dog", "fire truck")
    assert classifier.templates == prompts.ENSEMBLE
    assert classifier.logit_scale == 20.0
    texts = load_file(stored / "text_features.safetensors")["pets"]
    normal = torch.nn.functional.normalize
    expected = normal(normal(texts[:, :7], dim=-1).mean(1), dim=-1)
    torch.testing.assert_close(classifier.class_embeddings, expected)
    tower = VisionTransformer(**ARCHITECTURE).eval()
    tower.load_state_dict({k: v.float() for k, v in load_file(stored / "vision.safetensors").items()})
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        logits = 20 * normal(tower((pixels / 255 - 0.5) / 0.25), dim=-1) @ expected.T
    out = ramen.create("ensemble", classifier).predict(classifier.preprocess(pixels))
    torch.testing.assert_close(out.logits, logits, rtol=1e-4, atol=1e-4)
    assert ramen.create("clip", classifier)  # "a photo of a {}." is among the stored


def test_what_a_stored_tower_lacks(stored):
    classifier = load_model(f"stored:{stored}", CLASSES, "single")
    assert classifier.templates == prompts.SINGLE
    with pytest.raises(
        MissingPartError, match="the folder has no text encoder and no embedding of 'a photo of a cat'"
    ):
        ramen.create("clipartt", classifier)
    with pytest.raises(MissingPartError, match="no embedding of 'itap of a cat'"):
        load_model(f"stored:{stored}", CLASSES, "ensemble-without-period")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"config\.json cannot be read"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json is damaged"),
        (lambda f: (f / "config.json").write_text("{}"), "it lacks architecture, mean"),
        (lambda f: (f / "vision.safetensors").write_bytes(b"x"), r"vision\.safetensors cannot be read"),
        (lambda f: (f / "text_features.safetensors").unlink(), r"text_features\.safetensors cannot be read"),
        (
            lambda f: save_file({"a": torch.ones(2)}, f / "vision.safetensors"),
            "does not fit the architecture",
        ),
        (
            lambda f: save_file({"a": torch.ones(2)}, f / "text_features.safetensors"),
            "'pets' must have the shape",
        ),
    ],
)
def test_damaged_folders(stored, harm, message):
    harm(stored)
    with pytest.raises(ValueError, match=message):
        load_model(f"stored:{stored}", CLASSES)


def test_a_folder_without_these_classes(stored):
    with pytest.raises(
        ValueError, match=r"no text features for the classes ant, bee, .* it has birds: tit, owl"
    ):
        load_model(f"stored:{stored}", ["ant", "bee"])


def test_random_weights_are_the_same_each_time(tiny_model):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = load_model(f"random:{tiny_model}", CLASSES)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's draws change
    assert load_model(f"random:{tiny_model}", CLASSES).fingerprint() == first.fingerprint()


def test_a_checkpoint_file(tiny_model, tmp_path):
    import open_clip

    file = tmp_path / "deep" / "weights.pt"
    file.parent.mkdir()
    torch.save(open_clip.create_model(tiny_model).state_dict(), file)
    classifier = load_model(f"{tiny_model}/{file}", CLASSES)
    assert classifier.fingerprint() != load_model(f"random:{tiny_model}", CLASSES).fingerprint()


def test_the_list_has_what_presets_use():
    models = list_models()
    assert next(iter(models)) == "tiny"
    for preset in list_presets():
        assert preset in models[load_preset(preset).model]
    assert models["ViT-B-32/laion2b_s34b_b79k"] == []
    assert list(list_models("rn101/OPEN")) == ["RN101/openai"]
    assert "ARCH/TAG" in FORMS


def test_classes_of_the_same_name(tiny_model):
    """ImageNet's usual list names two classes "missile": only who asks for it may have that."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    with pytest.raises(ValueError, match="got more than one 'missile', 'sunglasses'"):
        prompts.check_classes(IMAGENET_CLASSNAMES)
    assert len(prompts.check_classes(IMAGENET_CLASSNAMES, allow_same_names=True)) == 1000
    twice = ["missile", "cat", "missile"]
    with pytest.raises(ValueError, match="classes"):
        load_model(f"random:{tiny_model}", twice)
    classifier = load_model(f"random:{tiny_model}", twice, allow_same_names=True)
    assert classifier.classes == tuple(twice)
    torch.testing.assert_close(classifier.class_embeddings[0], classifier.class_embeddings[2])


def test_a_model_of_transformers(tmp_path):
    pytest.importorskip("transformers")
    folder = save_model("CLIP", tmp_path)
    classifier = load_model(f"transformers:{folder}", CLASSES, prompts.SINGLE)
    same = ramen.ZeroShotClassifier.from_transformers(folder, CLASSES, templates=prompts.SINGLE)
    assert classifier.fingerprint() == same.fingerprint()
    assert classifier.templates == prompts.SINGLE


def test_a_network_of_timm(tmp_path):
    torch.manual_seed(0)
    network = timm.create_model("resnet10t").eval()
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    name = f"timm:resnet10t/{tmp_path}/weights.safetensors"
    with pytest.raises(ValueError, match="classes"):
        load_model(name, CLASSES)
    with pytest.raises(ValueError, match="classes"):  # nobody knows what a file's logits stand for
        load_model(name, None)
    classifier = load_model(name, [f"class {number}" for number in range(1000)])
    images = torch.randn(2, 3, *classifier.image_size)
    with torch.no_grad():
        torch.testing.assert_close(classifier.logits(classifier.encode(images)), network(images))
    facts = {finding.about: finding.text for finding in model_check(name)}
    assert facts["path"] == "fused"


@pytest.fixture(scope="module")
def of_torchvision(tmp_path_factory):
    """A network of torchvision whose weights are in torch.hub's cache."""
    home = tmp_path_factory.mktemp("torch")
    weights = torchvision.models.get_model_weights("mobilenet_v3_small").DEFAULT
    torch.manual_seed(0)
    network = torchvision.models.mobilenet_v3_small().eval()
    file = home / "hub" / "checkpoints" / weights.url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    torch.save(network.state_dict(), file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(home))
        yield network, weights, file


def test_a_network_of_torchvision(of_torchvision):
    network, weights, file = of_torchvision
    classifier = load_model("torchvision:mobilenet_v3_small", None)
    assert classifier.classes == tuple(weights.meta["categories"])
    pixels = torch.randint(0, 256, (2, 3, 232, 256), dtype=torch.uint8)
    assert classifier.preprocess.size == (224, 224)
    images = classifier.preprocess(pixels)
    with torch.no_grad():
        logits = network(images)
    torch.testing.assert_close(classifier.logits(classifier.encode(images)), logits)
    some = load_model("torchvision:mobilenet_v3_small/IMAGENET1K_V1", ["goldfish", "Tench"])
    assert some.classes == ("goldfish", "Tench")
    torch.testing.assert_close(some.logits(some.encode(images)), logits[:, [1, 0]])
    mine = load_model(f"torchvision:mobilenet_v3_small/{file}", list(map("class {}".format, range(1000))))
    torch.testing.assert_close(mine.logits(mine.encode(images)), logits)


@pytest.mark.parametrize(
    "asked", [["cat", "dog"], ["goldfish", "cat"], ["goldfish", "tench", *(f"class {n}" for n in range(998))]]
)
def test_classes_that_a_network_does_not_have(of_torchvision, asked):
    with pytest.raises(ValueError, match=r"^classes: .*1,000 classes \(tench, goldfish, great white shark, "):
        load_model("torchvision:mobilenet_v3_small", asked)


def test_a_network_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    labels = dict(enumerate(CLASSES))
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, id2label=labels)
    network = transformers.ViTForImageClassification(config).eval()
    network.save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    name = f"transformers:{tmp_path}"
    classifier = load_model(name, None)
    assert classifier.classes == ("cat", "dog", "fire truck")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        logits = network(images).logits
    torch.testing.assert_close(classifier.logits(classifier.encode(images)), logits)
    turned = load_model(name, ["dog", "fire truck", "cat"])
    torch.testing.assert_close(turned.logits(turned.encode(images)), logits[:, [1, 2, 0]])
    config.id2label = {number: f"LABEL_{number}" for number in range(3)}
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"^classes must"):
        load_model(name, None)
    assert load_model(name, ["a", "b", "c"]).classes == ("a", "b", "c")


# -- a function in a file of one's own ----------------------------------------------------------------------

OWN = """
import torch
from ramen import Preprocess, ZeroShotClassifier, testing

NAMES = ["boat", "cat", "house"]

def own(classes, device="cpu", dtype="float32"):
    names = classes or NAMES
    torch.manual_seed(0)
    tower = testing.small_tower()
    steps = Preprocess(32)
    return ZeroShotClassifier(
        tower, torch.randn(len(names), 16), classes=names, preprocess=steps, device=device, dtype=dtype
    )
"""


def test_a_function_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert load_model("mine.py:own", None).classes == ("boat", "cat", "house")
    classifier = load_model("mine.py:own", CLASSES, dtype="float64")
    assert classifier.classes == ("cat", "dog", "fire truck")
    assert classifier.dtype == torch.float64
    assert full_name("mine.py:own") == f"{tmp_path}/mine.py:own"
    digest = hashlib.sha256(OWN.encode()).hexdigest()[:12]
    assert recorded_name(full_name("mine.py:own")) == f"mine.py:own sha256:{digest}"
    facts = [finding.level for finding in model_check("mine.py:own")]
    assert facts == ["ok", "ok"]


NAMED = """
def named(classes, dtype):
    made = testing.small_classifier(dtype=dtype)
    from ramen import ZeroShotClassifier
    return ZeroShotClassifier(made.encoder, made.class_embeddings[: len(classes)], classes=classes)
"""


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ("raise KeyError('lost')", ValueError, r"failed: KeyError: 'lost' \(line 3\)"),
        ("return 1", TypeError, "ZeroShotClassifier, got int"),
        ("return testing.small_classifier(classes=3)", ValueError, r"asked for .*\(cat, dog, fire truck\)"),
        ("return named(classes, 'float64')", ValueError, "asked for float32, got float64"),
    ],
)
def test_functions_that_do_not_return_what_was_asked_for(tmp_path, body, error, said):
    file = tmp_path / "mine.py"
    file.write_text(f"from ramen import testing\ndef own(classes, **options):\n    {body}\n{NAMED}")
    with pytest.raises(error, match=rf"(?s)model: own in .*mine.py.*{said}"):
        load_model(f"{file}:own", CLASSES)
    with pytest.raises(ValueError, match=r"model: .* defines no function 'owm'; did you mean 'own'"):
        load_model(f"{file}:owm", CLASSES)
