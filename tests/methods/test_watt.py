"""WATT-S against the published sequence of passes on a mutable module with torch's Adam."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import ZeroShotClassifier, prompts, testing
from tests.helpers.slow_tests import full
from tests.oracles.contrastive_methods import classifier_of_similar_texts, published_loss, stream
from tests.oracles.mutable_model import SCALE, AdamModel, use_batch_statistics


class OrdinaryWatt(AdamModel):
    def __init__(
        self,
        kind: str,
        texts: list[Tensor],
        lr: float = 1e-3,
        steps: int = 2,
        rounds: int = 5,
        detach_targets: bool = False,
        temperature: float = 0.01,
    ) -> None:
        super().__init__(kind, lr)
        self.texts = texts  # one (C, d) a template
        self.steps, self.rounds = steps, rounds
        self.targets = {"detach_targets": detach_targets, "temperature": temperature}

    def predict(self, images: Tensor) -> Tensor:
        self.reset()
        for _ in range(self.rounds):
            passed = []
            for texts in self.texts:
                for _ in range(self.steps):
                    with torch.no_grad():
                        pseudo = (SCALE * self.encode(images) @ texts.T).softmax(1).topk(1).indices[:, 0]
                    chosen = torch.stack([texts[c] for c in pseudo.tolist()])
                    self.step(published_loss(self.encode(images), chosen, **self.targets))
                passed.append([p.detach().clone() for p in self.parameters.values()])
            with torch.no_grad():
                for p, *values in zip(self.parameters.values(), *passed, strict=True):
                    p.copy_(sum(values) / len(values))
        mean = sum(self.texts) / len(self.texts)
        with torch.no_grad():
            return SCALE * self.encode(images) @ (mean / mean.norm(dim=1, keepdim=True)).T


def compare(
    kind: str,
    batches: list[Tensor],
    templates: tuple[str, ...] | None = None,
    statistics: str = "source",
    **options,
) -> None:
    clf = classifier_of_similar_texts(kind)
    known = clf.embed_templates(prompts.ENSEMBLE if templates is None else templates)
    oracle = OrdinaryWatt(kind, list(known.transpose(0, 1)), **options)
    if statistics == "batch":
        use_batch_statistics(oracle.model)
    method = ramen.create("watt", clf, templates=templates, statistics=statistics, **options)
    for images in batches:
        torch.testing.assert_close(method.predict(images).logits, oracle.predict(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("batches", "options"),
    [(full(20, 6), {}), (3, {"detach_targets": True}), (3, {"temperature": 0.05})],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, batches: int, options: dict) -> None:
    """With three templates: more than one round, step and template."""
    compare(tower_kind, stream(batches), prompts.ENSEMBLE[:3], steps=2, rounds=2, **options)


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    compare("resnet", stream(full(20, 5)), prompts.ENSEMBLE[:3], statistics="batch", steps=2, rounds=2)


def test_equals_a_mutable_model_with_the_papers_parameters(tower_kind: str) -> None:
    compare(tower_kind, stream(2, seed=1))


def test_adaptation_and_targets_make_a_difference(tower_kind: str) -> None:
    """Else the comparison above would show little."""
    clf = classifier_of_similar_texts(tower_kind)
    through, held = (
        [ramen.create("watt", clf, rounds=1, detach_targets=option).predict(x) for x in stream(5)]
        for option in (False, True)
    )
    assert max((out.logits - out.zero_shot_logits).abs().max() for out in through) > 0.5
    assert max((a.logits - b.logits).abs().max() for a, b in zip(through, held, strict=True)) > 0.05


@pytest.mark.parametrize("detach_targets", [False, True])
def test_one_image_has_nothing_to_be_told_from(tower_kind: str, detach_targets: bool) -> None:
    """Its loss is constant: it is answered zero-shot, also beside images that are not there."""
    clf = testing.small_classifier(tower_kind)
    method = ramen.create("watt", clf, rounds=2, steps=1, detach_targets=detach_targets)
    image = torch.randn(1, 3, 32, 32)
    out = method.predict(image)
    assert not out.fallback.any()
    torch.testing.assert_close(out.logits, clf.logits(clf.encode(image)), rtol=0, atol=1e-4)
    among_nan = torch.cat([torch.full((2, 3, 32, 32), torch.nan), image])
    torch.testing.assert_close(method.predict(among_nan).logits[2:], out.logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["watt", "clipartt"])
def test_one_image_takes_one_pass(name: str) -> None:
    """No step is taken for a gradient that is zero."""
    counter = testing.CountingClassifier(testing.small_classifier())
    ramen.create(name, counter).predict(torch.randn(1, 3, 32, 32))
    assert (counter.forwards, counter.backwards) == ([1], [])


def test_the_eight_templates_of_its_own_code() -> None:
    assert prompts.TEMPLATE_SETS["watt"] == (
        "a photo of a {}",
        "itap of a {}",
        "a bad photo of the {}.",
        "a origami {}.",
        "a photo of the large {}.",
        "a {} in a video game.",
        "art of the {}.",
        "a photo of the small {}.",
    )
    clf = testing.small_classifier("vit", dtype="float64")
    compare("vit", stream(2), prompts.WATT, steps=1, rounds=1)
    images = stream(1)[0]
    by_name = ramen.create("watt", clf, templates="watt", steps=1, rounds=1).predict(images).logits
    by_text = ramen.create("watt", clf, templates=prompts.WATT, steps=1, rounds=1).predict(images).logits
    assert torch.equal(by_name, by_text)


def test_templates_that_the_classifier_has_need_no_text_encoder() -> None:
    clf = testing.small_classifier()
    bare = ZeroShotClassifier(
        testing.small_tower(), clf.template_embeddings, 30.0, templates=prompts.ENSEMBLE, classes=clf.classes
    )
    swapped = prompts.ENSEMBLE[4:0:-1]
    images = torch.randn(4, 3, 32, 32)
    options = {"templates": swapped, "rounds": 1, "steps": 1}
    a, b = (ramen.create("watt", c, **options).predict(images).logits for c in (bare, clf))
    torch.testing.assert_close(a, b)
    assert ramen.create("watt", bare).passes() == (71, 70)
