"""Small random CLIPs, quick enough for tests, in open_clip's own modules."""

from collections.abc import Sequence
from hashlib import sha256

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.images.preprocess import Preprocess
from ramen.models import prompts
from ramen.models.classifier import ZeroShotClassifier

IMAGE_SIZE = 32
_WIDTH = 16


def small_tower(kind: str = "vit", seed: int = 0) -> nn.Module:
    """A random image tower in open_clip's own modules: ``"vit"`` (LayerNorm) or ``"resnet"`` (BatchNorm)."""
    from open_clip.modified_resnet import ModifiedResNet
    from open_clip.transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower: nn.Module
        if kind == "vit":
            tower = VisionTransformer(IMAGE_SIZE, 8, 32, 2, 2, 2.0, output_dim=_WIDTH)
        elif kind == "resnet":
            tower = ModifiedResNet((1, 1, 1, 1), _WIDTH, heads=2, image_size=IMAGE_SIZE, width=4)
        else:
            raise ValueError(f"kind must be 'vit' or 'resnet', got {kind!r}")
        _give_history(tower)
    return tower


@torch.no_grad()
def _give_history(tower: nn.Module) -> None:
    """Make a fresh tower tell images apart, with norm layers as they are after training."""
    for layer in tower.modules():
        if isinstance(layer, nn.LayerNorm | nn.BatchNorm2d):
            layer.weight.copy_(1 + 0.2 * torch.randn_like(layer.weight))
            layer.bias.copy_(0.2 * torch.randn_like(layer.bias))
    for parameter in tower.parameters():
        if parameter.ndim == 2:
            parameter.mul_(3)  # initial weights are so small that all images look alike
    for layer in (m for m in tower.modules() if isinstance(m, nn.BatchNorm2d)):
        layer.momentum = 1.0
    tower.train()(torch.randn(64, 3, IMAGE_SIZE, IMAGE_SIZE))  # running statistics that fit
    tower.eval()


def small_classifier(
    kind: str = "vit", classes: int = 5, seed: int = 0, dtype: str = "float32", device: str = "cpu"
) -> ZeroShotClassifier:
    """A classifier on ``small_tower`` with the seven templates and a text encoder, all random."""
    tower = small_tower(kind, seed)
    names = [f"class {index}" for index in range(classes)]
    encode_text = SmallTextEncoder(tower)
    return ZeroShotClassifier(
        tower,
        prompts.embed_classes(encode_text, names, prompts.ENSEMBLE),
        30.0,
        classes=names,
        templates=prompts.ENSEMBLE,
        preprocess=Preprocess((IMAGE_SIZE, IMAGE_SIZE)),
        encode_text=encode_text,
        dtype=dtype,
        device=device,
    )


class SmallTextEncoder:
    """A random but fixed embedding for every text.

    What all images have in common is taken out of it, so that predictions spread over the classes.
    """

    @torch.no_grad()
    def __init__(self, tower: nn.Module) -> None:
        features = tower(noise(64, (IMAGE_SIZE, IMAGE_SIZE), seed=0))
        self.common = F.normalize(F.normalize(features, dim=-1).mean(0), dim=0)

    def __call__(self, texts: list[str]) -> Tensor:
        seeds = [int.from_bytes(sha256(text.encode()).digest()[:7]) for text in texts]
        rows = torch.stack([torch.randn(_WIDTH, generator=torch.Generator().manual_seed(s)) for s in seeds])
        return rows - (rows @ self.common)[:, None] * self.common

    def context_prompts(self, template: str, classes: Sequence[str]) -> "SmallContextPrompts":
        """The prompts of these classes in a template."""
        return SmallContextPrompts(self([template.replace("{}", name) for name in classes]))

    def affine_prompts(self, texts: Sequence[str], at_once: int) -> "SmallAffinePrompts":
        """These texts as a function of norm parameters; ``at_once`` changes nothing here."""
        return SmallAffinePrompts(self(list(texts)))


class SmallAffinePrompts:
    """Texts whose norm parameters are those of one layer after a random embedding."""

    def __init__(self, texts: Tensor) -> None:
        self._texts = texts
        self.base = torch.cat([torch.ones(_WIDTH), torch.zeros(_WIDTH)])

    def __call__(self, affine: Tensor) -> Tensor:
        weight, bias = affine.chunk(2)
        return F.normalize(self._texts.to(affine) * weight + bias, dim=-1)


class SmallContextPrompts:
    """Prompts whose context adds to what their classes' texts are embedded as, differently for each class."""

    def __init__(self, texts: Tensor) -> None:
        generator = torch.Generator().manual_seed(len(texts))
        self._texts = texts
        self.start = torch.randn(3, _WIDTH, generator=generator)
        self._mixing = torch.randn(len(texts), 3 * _WIDTH, _WIDTH, generator=generator)

    def __call__(self, context: Tensor) -> Tensor:
        texts, start, mixing = (part.to(context) for part in (self._texts, self.start, self._mixing))
        moved = torch.einsum("bw,cwd->bcd", (context - start).flatten(1), mixing)
        return F.normalize(texts + moved.tanh(), dim=-1)


def noise(images: int, size: tuple[int, int], seed: int) -> Tensor:
    """Images of normally distributed pixels, decided by the seed."""
    return torch.randn(images, 3, *size, generator=torch.Generator().manual_seed(seed))
