"""What the oracles of CLIPArTT and WATT share: the published loss, texts with words in common, batches."""

import torch
from torch import Tensor

import ramen
from ramen import prompts, testing
from tests.oracles.mutable_model import SCALE


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
    """Texts as sums of random vectors, one per word: texts that share words are similar."""
    rows = []
    for text in texts:
        row = torch.zeros(16)
        for word in text.replace(".", "").split():
            generator = torch.Generator().manual_seed(int.from_bytes(word.encode()))
            row += torch.randn(16, generator=generator) * (0.5 if word.isdigit() else 1)
        rows.append(row)
    return torch.stack(rows)


def classifier_of_similar_texts(kind: str) -> ramen.ZeroShotClassifier:
    """``testing.small_classifier`` in fp64 with texts that are similar to each other.

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
    """Random batches of five and one of ``last``; ``spreads`` say, in turn, how much their images differ."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for index, n in enumerate([5] * (batches - 1) + [last]):
        images = torch.randn(n + 1, 3, 32, 32, generator=generator, dtype=torch.float64)
        drawn.append(images[:1] + spreads[index % len(spreads)] * images[1:])
    return drawn
