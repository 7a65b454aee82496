"""A model as the field writes it: a mutable module in fp64 whose norm layers have an optimizer."""

import copy

import torch
from torch import Tensor, nn

import ramen
from ramen import prompts, testing

SCALE = 30.0  # of testing.small_classifier


class OrdinaryModel:
    """The tower of ``testing.small_classifier``; weights and Adam are put back by loading copies."""

    def __init__(self, kind: str, lr: float) -> None:
        self.model = testing.small_tower(kind).double().eval().requires_grad_(False)
        self.norms = [m for m in self.model.modules() if isinstance(m, nn.LayerNorm | nn.BatchNorm2d)]
        self.parameters = [p.requires_grad_() for m in self.norms for p in (m.weight, m.bias)]
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr)
        self.original = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def reset(self) -> None:
        self.model.load_state_dict(self.original[0])
        self.optimizer.load_state_dict(self.original[1])

    def encode(self, images: Tensor) -> Tensor:
        features = self.model(images)
        return features / features.norm(dim=1, keepdim=True)

    def step(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def published_loss(
    images: Tensor, texts: Tensor, detach_targets: bool = False, temperature: float = 0.01
) -> Tensor:
    """What CLIPArTT and WATT minimise, image by image."""
    rows = [
        torch.softmax((z @ images.T + u @ texts.T) / 2 / temperature, 0)
        for z, u in zip(images, texts, strict=True)
    ]
    targets = torch.stack(rows)
    if detach_targets:
        targets = targets.detach()
    losses = []
    for i, z in enumerate(images):
        log_p = torch.log_softmax(SCALE * (texts @ z), 0)
        losses.append(-(targets[:, i] * log_p).sum())
    return sum(losses) / len(losses)


def embed_words(texts: list[str]) -> Tensor:
    """Texts as sums of random vectors for their words: those that share words are alike."""
    rows = []
    for text in texts:
        row = torch.zeros(16)
        for word in text.replace(".", "").split():
            generator = torch.Generator().manual_seed(int.from_bytes(word.encode()))
            row += torch.randn(16, generator=generator) * (0.5 if word.isdigit() else 1)
        rows.append(row)
    return torch.stack(rows)


def alike_classifier(kind: str) -> ramen.ZeroShotClassifier:
    """``testing.small_classifier`` in fp64 with texts that are alike.

    Among texts and images that have nothing in common, the targets of the contrastive loss would be 0 and 1
    whatever is wrong with them.
    """
    names = [f"class {index}" for index in range(5)]
    return ramen.ZeroShotClassifier(
        testing.small_tower(kind),
        prompts.embed_classes(embed_words, names, prompts.ENSEMBLE),
        SCALE,
        classes=names,
        templates=prompts.ENSEMBLE,
        encode_text=embed_words,
        dtype="float64",
    )


def stream(
    batches: int, last: int = 2, seed: int = 0, spreads: tuple[float, ...] = (0.05, 0.3, 0.1, 1.0)
) -> list[Tensor]:
    """Random batches of five and a last one, in turn of images that are more or less alike."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index, n in enumerate([5] * (batches - 1) + [last]):
        images = torch.randn(n + 1, 3, 32, 32, generator=generator, dtype=torch.float64)
        found.append(images[:1] + spreads[index % len(spreads)] * images[1:])
    return found
