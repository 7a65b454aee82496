"""BATCLIP's image tower against a mutable model with loops over classes and torch's optimizers."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.oracles.mutable_model import SCALE, MutableModel, compare, stream, use_batch_statistics


class Oracle(MutableModel):
    """The three terms one by one."""

    def __init__(
        self,
        kind: str,
        lr: float,
        match: float = 1.0,
        separation: float = 1.0,
        length: str = "raw",
        pairs: str = "sum",
        optimizer: str = "adamw",
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(kind)
        parameters = self.parameters.values()
        self.optimizer = {
            "sgd": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=weight_decay),
            "adam": lambda: torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay),
            "adamw": lambda: torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay),
        }[optimizer]()
        self.match, self.separation, self.length, self.pairs = match, separation, length, pairs
        self.classes: list[int] = []

    def predict(self, images: Tensor) -> Tensor:
        features = self.model(images)
        unit = features / features.norm(dim=1, keepdim=True)
        logits = SCALE * unit @ self.text.T
        labels = logits.argmax(1)
        present = sorted(set(labels.tolist()))
        self.classes.append(len(present))
        means = [features[labels == k].mean(0) for k in present]
        matched = means if self.length == "raw" else [unit[labels == k].mean(0) for k in present]
        match = sum(m @ self.text[k] for m, k in zip(matched, present, strict=True)) / len(present)
        distances = [
            1 - (a @ b) / a.norm() / b.norm()
            for i, a in enumerate(means)
            for j, b in enumerate(means)
            if i != j
        ]
        separation = sum(distances) if distances else torch.zeros(())
        if self.pairs == "mean":
            separation = separation / max(len(distances), 1)
        loss = self.uncertainties(logits).mean() - self.match * match - self.separation * separation
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return logits.detach()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam", "length": "unit", "weight_decay": 0.1},
        {"lr": 2e-5, "optimizer": "sgd", "pairs": "mean", "match": 0.5, "separation": 2.0},
    ],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, options: dict) -> None:
    options = {"lr": 5e-4, **options}
    oracle = Oracle(tower_kind, **options)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("batclip", clf, towers="image", **options)
    compare(oracle, method, stream(20, 6), 1e-6)
    assert len(set(oracle.classes)) > 1
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-4)


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    oracle = Oracle("resnet", 1e-4)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    compare(
        oracle, ramen.create("batclip", clf, lr=1e-4, towers="image", statistics="batch"), stream(20, 6), 1e-6
    )


def test_one_image_at_a_time_equals_a_mutable_model() -> None:
    """A single class has nothing to be separated from."""
    oracle = Oracle("vit", 5e-4)
    method = ramen.create("batclip", testing.small_classifier(dtype="float64"), lr=5e-4, towers="image")
    compare(oracle, method, stream(20, 1), 1e-6)
    assert set(oracle.classes) == {1}
