"""Classification networks as classifiers: logits, gradients and preprocessing against the networks' own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

import ramen
from ramen import Preprocess, ZeroShotClassifier, testing
from ramen.methods._losses import entropy

SIZE, CLASSES = 32, 5


def lively(module: nn.Module, seed: int = 0) -> nn.Module:
    """With norm layers, statistics and a head as after training."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        for name, value in layer.named_parameters(recurse=False):
            if "Norm" in type(layer).__name__ or (isinstance(layer, nn.Linear) and name == "bias"):
                value.data += 0.3 * torch.randn(value.shape, generator=generator)
            elif isinstance(layer, nn.Linear):
                value.data += torch.randn(value.shape, generator=generator) / value.shape[1] ** 0.5
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = 1.0
        module.train()(torch.randn(8, 3, SIZE, SIZE, generator=generator))
    return module.eval()


class Mlp(nn.Module):
    """A network whose head has two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten())
        self.hidden, self.out = nn.Linear(8 * 8 * 8, 16), nn.Linear(16, CLASSES, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(nn.functional.gelu(self.hidden(self.trunk(images))))


def of_transformers() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=8,
        id2label={number: f"thing {number}" for number in range(CLASSES)},
    )
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "torchvision resnet": lambda: torchvision.models.resnet18(num_classes=CLASSES),
    "torchvision vit": lambda: torchvision.models.VisionTransformer(
        SIZE, 8, 2, 2, 16, 32, num_classes=CLASSES
    ),
    "timm efficientnet": lambda: timm.create_model("efficientnet_lite0", num_classes=CLASSES),
    "timm vit": lambda: timm.create_model(
        "vit_tiny_patch16_224",
        img_size=SIZE,
        patch_size=8,
        embed_dim=32,
        num_heads=2,
        depth=2,
        num_classes=CLASSES,
    ),
    "timm convnext": lambda: timm.create_model("convnext_atto", num_classes=CLASSES, depths=(1, 1, 1, 1)),
    "mlp": Mlp,
    "transformers vit": of_transformers,
}


def network(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return lively(NETWORKS[name]())


def own_logits(module: nn.Module, images: Tensor) -> Tensor:
    output = module(images)
    return getattr(output, "logits", output)


def noise(count: int = 3) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def classifier(module: nn.Module, **options: Any) -> ZeroShotClassifier:
    return ZeroShotClassifier.from_classifier(module, preprocess=Preprocess(SIZE), **options)


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_equal_the_networks_own(name: str) -> None:
    module = network(name)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    clf, images = classifier(module), noise(4)
    with torch.no_grad():
        expected = own_logits(module, images)
        found = clf.logits(clf.encode(images))
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert expected.std(0).min() > 1e-4  # the images differ
    assert clf.encoder.fused == (name in ("timm vit", "torchvision resnet")), clf.encoder.plain_reason
    out = ramen.create("ramen", clf).predict(images)
    assert (out.zero_shot_logits - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert out.logits.isfinite().all()
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


@pytest.mark.parametrize("name", ["torchvision resnet", "timm vit", "transformers vit", "mlp"])
def test_sample_gradients_equal_single_backward_passes(name: str) -> None:
    module, images = network(name).double(), noise().double()  # in fp32, rounding may switch a ReLU
    clf = classifier(module)
    rows = clf.encoder.base.expand(len(images), -1).clone().requires_grad_()
    found = clf.gradient(entropy(clf.logits(clf.encode(images, rows))).sum(), rows)
    parameters = dict(module.named_parameters())
    wanted = [parameters[piece.name.removeprefix("network.")] for piece in clf.encoder.layout]
    for image, gradient in zip(images, found, strict=True):
        own = torch.autograd.grad(entropy(own_logits(module, image[None])).sum(), wanted)
        expected = torch.cat([part.flatten() for part in own])
        assert expected.abs().max() > 1e-4
        assert (gradient - expected).norm() <= 1e-9 * expected.norm()


def test_fused_equals_plain() -> None:
    module, images = network("timm vit"), noise()
    fused, plain = classifier(module, fused=True), classifier(module, fused=False)
    affine = fused.encoder.base + 0.1 * torch.randn(3, len(fused.encoder.base))
    a, b = (clf.logits(clf.encode(images, affine)) for clf in (fused, plain))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_an_embedding_is_the_last_layers_input_with_a_one() -> None:
    module, images = network("torchvision resnet"), noise()
    clf = classifier(module)
    module.fc = nn.Identity()
    with torch.no_grad():
        features = torch.cat([module(images), torch.ones(3, 1)], dim=1)
    torch.testing.assert_close(clf.encode(images), nn.functional.normalize(features, dim=1))


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("ramen", "mlp"),
        ("ramen", "timm vit"),
        ("ramen", "torchvision vit"),
        ("tent", "mlp"),
        ("t3a", "mlp"),
        ("clip", "mlp"),
    ],
)
def test_the_contract(method: str, name: str) -> None:
    assert "passes" in testing.check_method(method, classifier(network(name)))


def test_a_state_of_another_head_is_refused() -> None:
    module = network("mlp")
    method = ramen.create("ramen", classifier(module))
    method.predict(noise())
    longer = network("mlp")
    longer.out.weight.data *= 2  # the same directions
    other = ramen.create("ramen", classifier(longer, logit_scale=method.classifier.logit_scale))
    with pytest.raises(ValueError, match="the lengths of the class vectors are others there than here"):
        other.load_state_dict(method.state_dict())


def test_names() -> None:
    assert classifier(network("mlp")).classes == ("0", "1", "2", "3", "4")
    assert classifier(network("mlp"), classes=list("abcde")).classes == tuple("abcde")
    assert classifier(network("transformers vit")).classes[3] == "thing 3"


# -- preprocessing ----------------------------------------------------------------------------------------


def photo(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_timm_knows_its_preprocessing() -> None:
    module = lively(timm.create_model("efficientnet_lite0", num_classes=CLASSES))
    clf = ZeroShotClassifier.from_classifier(module)
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(module))
    for image in (photo(300, 250), photo(224, 331), photo(40, 50)):
        assert torch.equal(clf.preprocess(image)[0], theirs(image))


@pytest.mark.parametrize("name", ["ResNet50_Weights", "ViT_B_16_Weights", "EfficientNet_B1_Weights"])
def test_torchvisions_transforms(name: str) -> None:
    for weights in getattr(torchvision.models, name):
        theirs = weights.transforms()
        size = theirs.crop_size[0]
        module = nn.Sequential(
            nn.Conv2d(3, 4, 8, 8), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        module.append(nn.Linear(4, 3)).eval()
        clf = ZeroShotClassifier.from_classifier(module, preprocess=theirs)
        assert clf.image_size == (size, size)
        image = photo(size + 77, size + 30)
        assert torch.equal(clf.preprocess(image)[0], theirs(image))


# -- networks that have no such head ------------------------------------------------------------------------
