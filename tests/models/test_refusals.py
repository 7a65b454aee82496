"""What models and their arguments are refused for: the type of the error, and the argument that it names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

import ramen
from ramen import Preprocess, ZeroShotClassifier, prompts, testing
from ramen.models.classifier import MissingPartError
from ramen.models.names import load_model
from ramen.models.networks import take_head
from ramen.models.prefetch import prefetch
from ramen.models.text import TowerPrompts
from tests.models.test_network_head import CLASSES, SIZE, Mlp, classifier, network, noise

NAMES, TIMM = ["cat", "polar_bear", "fire truck"], "vit_tiny_patch16_224"
EMBEDDINGS = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


class TwoHeads(Mlp):
    def forward(self, images: Tensor) -> Tensor:
        hidden = self.hidden(self.trunk(images))
        return self.out(hidden) + self.out(-hidden.relu())


def without_weights_for_a_class() -> nn.Module:
    module = Mlp()
    module.out.weight.data[2] = 0
    return module


def of_open_clip(*arguments: Any) -> ZeroShotClassifier:
    return ZeroShotClassifier.from_open_clip(*arguments)


def of_embeddings(embeddings: object, **options: Any) -> ZeroShotClassifier:
    return ZeroShotClassifier(testing.small_tower(), embeddings, **options)


def of_prototypes(images: object, labels: object, **options: Any) -> ZeroShotClassifier:
    return ZeroShotClassifier.from_prototypes(testing.small_tower(), images, labels, **options)


def of_network(module: nn.Module, **options: Any) -> ZeroShotClassifier:
    return ZeroShotClassifier.from_classifier(module, **options)


def check_images(images: Tensor, *, preprocess: bool) -> Tensor:
    """Of a classifier with preprocessing, and of a tower that states its image size."""
    own = of_embeddings(torch.eye(5, 16))
    return (testing.small_classifier() if preprocess else own).check_images(images)


def encoding_all_texts_alike() -> ZeroShotClassifier:
    return of_embeddings(EMBEDDINGS, encode_text=lambda texts: EMBEDDINGS[:1].repeat(len(texts), 1))


REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    # models of open_clip, and forms of names
    (lambda: of_open_clip("ViT-B-23", None, NAMES), ValueError, "^model: .*'ViT-B-32'"),
    (lambda: of_open_clip("ViT-B-32", "opneai", NAMES), ValueError, "^pretrained: .*'openai'"),
    (lambda: of_open_clip("ViT-B-32", "/no/such/file.pt", NAMES), ValueError, "^pretrained: "),
    (lambda: of_open_clip("hf-hub:someone/model", "openai", NAMES), ValueError, "^pretrained"),
    (lambda: of_open_clip(None, None, NAMES), TypeError, "^model"),
    (lambda: of_open_clip("ViT-B-32", 3, NAMES), TypeError, "^pretrained"),
    (lambda: of_open_clip("ViT-B-32", None, None), TypeError, "^classes"),
    *[
        (lambda n=n: load_model(n, NAMES), ValueError, "^model: ")
        for n in ("ViT-B-32", "RN50/", "/openai", "")
    ],
    (lambda: load_model("ViT-B-32/opnai", NAMES), ValueError, "^pretrained: .*'openai'"),
    (lambda: load_model("torchvision:mobilenet", None), ValueError, "^model: "),
    (lambda: load_model("torchvision:mobilenet_v3_small/V9", None), ValueError, "^model: "),
    (lambda: load_model("torchvision:fasterrcnn_resnet50_fpn", None), ValueError, "^model: "),
    # class names and templates
    *[
        (lambda c=c: prompts.check_classes(c), ValueError, "^classes")
        for c in ([], ["cat", "dog", "cat"], ["polar bear", "polar_bear"], ["cat", ""], ["cat", 3])
    ],
    (lambda: prompts.check_classes("cat"), TypeError, "^classes"),
    (lambda: prompts.check_classes(None), TypeError, "^classes"),
    (lambda: prompts.check_templates("ensembel"), ValueError, "^templates: .*'ensemble'"),
    *[
        (lambda t=t: prompts.check_templates(t), ValueError, "^templates")
        for t in ([], ["a photo"], ["{} or {}"])
    ],
    (lambda: testing.small_classifier().with_classes(["a", "a"]), ValueError, "^classes"),
    (lambda: encoding_all_texts_alike().with_classes(["a", "b"]), ValueError, "^classes"),
    (lambda: of_embeddings(EMBEDDINGS).with_classes(["a"]), MissingPartError, "text encoder"),
    # class embeddings and other arguments of a classifier
    (lambda: of_embeddings([[1.0]]), TypeError, "^class_embeddings"),
    (lambda: of_embeddings(torch.ones(3, 16, dtype=torch.int64)), TypeError, "^class_embeddings"),
    *[
        (lambda e=e: of_embeddings(e), ValueError, "^class_embeddings")
        for e in (
            torch.randn(4, 17),
            torch.randn(4),
            torch.zeros(0, 16),
            torch.full((4, 16), torch.nan),
            torch.eye(4, 16) * torch.tensor([[1], [1], [0], [1]]),
            torch.eye(16)[:4, None] * torch.tensor([[[1.0], [-1.0]]]),
        )
    ],
    (lambda: of_embeddings(EMBEDDINGS, classes=["a"]), ValueError, "^classes"),
    (lambda: of_embeddings(EMBEDDINGS, classes=list("aabc")), ValueError, "^classes"),
    (lambda: of_embeddings(EMBEDDINGS, logit_scale=0.0), ValueError, "^logit_scale"),
    (lambda: of_embeddings(torch.randn(4, 2, 16), templates="single"), ValueError, "^templates"),
    (lambda: of_embeddings(EMBEDDINGS, device="cuda:97"), ValueError, "^device"),
    (lambda: of_embeddings(EMBEDDINGS, dtype="float8"), ValueError, "^dtype"),
    *[
        (lambda i=i, p=p: check_images(i, preprocess=p), ValueError, "^images")
        for p in (True, False)
        for i in (
            torch.zeros(2, 3, 32, 31),
            torch.zeros(2, 3, 32, 32, dtype=torch.uint8),
            torch.zeros(3, 32, 32),
            torch.zeros(0, 3, 32, 32),
        )
    ],
    # networks that classify
    (lambda: of_network(network("mlp"), preprocess=lambda image: image), TypeError, "^preprocess"),
    (lambda: of_network(network("mlp")), ValueError, "^preprocess"),
    (
        lambda: of_network(network("mlp"), preprocess=Preprocess(SIZE), image_size=SIZE),
        ValueError,
        "^image_size",
    ),
    (lambda: classifier(network("mlp"), classes=["a", "b"]), ValueError, "^classes"),
    *[
        (lambda m=m: take_head(m(), (SIZE, SIZE)), ValueError, named)
        for m, named in (
            (lambda: nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.BatchNorm2d(4)), r"^model .*\(2, 4, 4, 4\)"),
            (lambda: torchvision.models.squeezenet1_1(num_classes=4), "^model"),
            (TwoHeads, "^model .*'out'"),
            (lambda: nn.Sequential(Mlp(), nn.Softmax(1)), "^model .*'0.out'"),
            (without_weights_for_a_class, "^model: .*'out'"),
        )
    ],
    (lambda: take_head("resnet50", (SIZE, SIZE)), TypeError, "^model"),
    # prototypes, and models of timm
    *[
        (lambda x=x: of_prototypes(noise(4), x), ValueError, "^labels")
        for x in ([0, 1, 2], [0.0, 1.0, 2.0, 3.0], [0, 1, -1, 2], [0, 1, 4, 4])
    ],
    (lambda: of_prototypes(["a.jpg"], [0]), ValueError, "^preprocess"),
    (lambda: of_prototypes(torch.full((1, 3, 32, 32), torch.nan), [0]), ValueError, "^images"),
    (lambda: of_prototypes([], [], preprocess=Preprocess(32)), ValueError, "^images"),
    (lambda: ZeroShotClassifier.from_timm("vit_tiny_patch16_225"), ValueError, f"^name: .*'{TIMM}'"),
    (lambda: ZeroShotClassifier.from_timm(TIMM, pretrained="nothing.pt"), ValueError, "^pretrained: "),
    # towers of texts, and reading ahead
    (
        lambda: TowerPrompts(
            nn.Linear(3, 2), {"rows": EMBEDDINGS}, lambda module, inputs: module(**inputs), 10
        ),
        ValueError,
        "Linear",
    ),
    (lambda: prefetch([], testing.small_classifier(), workers=-1), ValueError, "^workers"),
    (lambda: prefetch([], testing.small_classifier(), workers=1.5), TypeError, "^workers"),
    (lambda: prefetch([], testing.small_classifier(), ahead=0), ValueError, "^ahead"),
    (lambda: prefetch([], testing.small_classifier(), dtype="int8"), ValueError, "^dtype"),
    (lambda: prefetch([], of_embeddings(EMBEDDINGS)), ValueError, "preprocess="),
]


@pytest.mark.parametrize(("call", "error", "named"), REFUSED)
def test_refused(call: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()


def test_weights_of_another_network(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=f"^pretrained: .*{TIMM}"):
        ZeroShotClassifier.from_timm(TIMM, pretrained=tmp_path / "other.safetensors")


def test_a_width_that_shows_with_the_first_image() -> None:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 6), nn.LayerNorm(6))
    clf = ZeroShotClassifier(encoder, torch.randn(CLASSES, 5))
    with pytest.raises(ValueError, match=r"^class_embeddings"):
        ramen.create("ensemble", clf).predict(noise(1))
