"""BATCLIP as the field writes it: two mutable towers, loops over classes, one optimizer of torch."""

import copy

import torch
from torch import Tensor, nn

from tests.oracles.mutable_model import MutableModel
from tests.oracles.view_methods import SCALE


class TextTower:
    """The text tower of an open_clip model, token by token and block by block, with LayerNorms to train."""

    def __init__(self, clip: nn.Module, tokenizer: object) -> None:
        self.clip = copy.deepcopy(clip).requires_grad_(False)
        self.tokenizer = tokenizer
        blocks = self.clip.transformer.resblocks
        layers = [*(norm for block in blocks for norm in (block.ln_1, block.ln_2)), self.clip.ln_final]
        self.parameters = [p.requires_grad_() for layer in layers for p in (layer.weight, layer.bias)]

    def embed(self, prompt: str) -> Tensor:
        """The unit embedding of one prompt."""
        clip = self.clip
        tokens = self.tokenizer([prompt])[0]
        x = clip.token_embedding(tokens)[None] + clip.positional_embedding
        for block in clip.transformer.resblocks:
            y = block.ln_1(x)
            x = x + block.attn(y, y, y, need_weights=False, attn_mask=clip.attn_mask)[0]
            x = x + block.mlp(block.ln_2(x))
        row = clip.ln_final(x)[0, int(tokens.argmax())] @ clip.text_projection
        return row / row.norm()


class Bimodal(MutableModel):
    """Both towers.

    Attributes:
        texts: Of each batch, the class embeddings that it was answered with.
    """

    def __init__(
        self,
        kind: str,
        tower: TextTower,
        classes: list[str],
        templates: list[str],
        *,
        lr: float,
        optimizer: str = "adamw",
        weight_decay: float = 0.01,
        match: float = 1.0,
        separation: float = 1.0,
    ) -> None:
        super().__init__(kind)
        self.tower, self.classes, self.templates = tower, classes, templates
        self.match, self.separation = match, separation
        trained = [*self.parameters.values(), *tower.parameters]
        self.optimizer = {
            "sgd": lambda: torch.optim.SGD(trained, lr=lr, momentum=0.9, weight_decay=weight_decay),
            "adam": lambda: torch.optim.Adam(trained, lr=lr, weight_decay=weight_decay),
            "adamw": lambda: torch.optim.AdamW(trained, lr=lr, weight_decay=weight_decay),
        }[optimizer]()
        self.texts: list[Tensor] = []
        self.predicted: list[int] = []

    def class_embedding(self, name: str) -> Tensor:
        rows = [self.tower.embed(template.replace("{}", name)) for template in self.templates]
        mean = torch.stack(rows).mean(0)
        return mean / mean.norm()

    def predict(self, images: Tensor) -> Tensor:
        texts = torch.stack([self.class_embedding(name) for name in self.classes])
        features = self.model(images)
        logits = torch.stack([SCALE * texts @ (row / row.norm()) for row in features])
        labels = logits.argmax(1)
        present = sorted(set(labels.tolist()))
        means = {k: features[labels == k].mean(0) for k in present}
        match = sum(means[k] @ texts[k] for k in present) / len(present)
        separation = torch.zeros((), dtype=torch.float64)
        for k in present:
            for j in present:
                if k != j:
                    separation = separation + 1 - (means[k] @ means[j]) / means[k].norm() / means[j].norm()
        loss = self.uncertainties(logits).mean() - self.match * match - self.separation * separation
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.texts.append(texts.detach())
        self.predicted.append(len(present))
        return logits.detach()
