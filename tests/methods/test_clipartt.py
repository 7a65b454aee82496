"""CLIPArTT against the published sequence of passes on a mutable module with torch's Adam."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.oracles.contrastive_methods import (
    classifier_of_similar_texts,
    embed_words,
    published_loss,
    stream,
)
from tests.oracles.mutable_model import SCALE, AdamModel, use_batch_statistics


class OrdinaryClipartt(AdamModel):
    def __init__(
        self,
        kind: str,
        lr: float = 1e-3,
        topk: int = 3,
        iterations: int = 10,
        detach_targets: bool = False,
        temperature: float = 0.01,
    ) -> None:
        super().__init__(kind, lr)
        self.names = [f"class {index}" for index in range(5)]
        self.topk, self.iterations = topk, iterations
        self.targets = {"detach_targets": detach_targets, "temperature": temperature}

    def embed(self, texts: list[str]) -> Tensor:
        return torch.nn.functional.normalize(embed_words(texts), dim=-1).double()

    def predict(self, images: Tensor) -> Tensor:
        self.reset()
        for _ in range(self.iterations):
            classes = self.embed([f"a photo of a {name}" for name in self.names])
            with torch.no_grad():
                found = (SCALE * self.encode(images) @ classes.T).softmax(1).topk(self.topk).indices
            written = []
            for row in found.tolist():
                written.append("a photo of a " + self.names[row[0]])
                for c in row[1:]:
                    written[-1] += " or " + self.names[c]
            self.step(published_loss(self.encode(images), self.embed(written), **self.targets))
        with torch.no_grad():
            return SCALE * self.encode(images) @ classes.T


@pytest.mark.parametrize(
    ("batches", "options"),
    [
        (20, {"iterations": 4}),
        (20, {"iterations": 4, "detach_targets": True}),
        (2, {}),
        (3, {"iterations": 4, "topk": 1, "lr": 5e-3}),
        (3, {"iterations": 4, "temperature": 0.05}),
    ],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, batches: int, options: dict) -> None:
    oracle = OrdinaryClipartt(tower_kind, **options)
    method = ramen.create("clipartt", classifier_of_similar_texts(tower_kind), **options)
    for images in stream(batches):
        torch.testing.assert_close(method.predict(images).logits, oracle.predict(images), rtol=0, atol=1e-5)


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    oracle = OrdinaryClipartt("resnet", iterations=4)
    use_batch_statistics(oracle.model)
    clf = classifier_of_similar_texts("resnet")
    method = ramen.create("clipartt", clf, iterations=4, statistics="batch")
    for images in stream(20):
        out = method.predict(images)
        torch.testing.assert_close(out.logits, oracle.predict(images), rtol=0, atol=1e-5)
        assert torch.equal(out.zero_shot_logits, clf.logits(clf.encode(images)))


def test_adaptation_and_targets_make_a_difference(tower_kind: str) -> None:
    """Else the comparison above would show little."""
    clf = classifier_of_similar_texts(tower_kind)
    plain = [ramen.create("clip", clf, template="a photo of a {}").predict(x).logits for x in stream(4)]
    through, held = (
        [ramen.create("clipartt", clf, detach_targets=option).predict(x).logits for x in stream(4)]
        for option in (False, True)
    )
    assert max((a - b).abs().max() for a, b in zip(through, plain, strict=True)) > 0.5
    assert max((a - b).abs().max() for a, b in zip(through, held, strict=True)) > 0.05


def test_no_prompt_is_embedded_twice() -> None:
    clf = testing.small_classifier()
    asked: list[str] = []
    original = clf.encode_text

    def encode_text(texts: list[str]) -> Tensor:
        asked.extend(dict.fromkeys(texts))  # a call may be filled up with copies
        return original(texts)

    clf.encode_text = encode_text
    method = ramen.create("clipartt", clf, iterations=3)
    assert asked == [f"a photo of a class {index}" for index in range(5)]
    for images in stream(4):
        method.predict(images.float())
    written = asked[5:]
    assert len(written) == len(set(written)) > 3
    assert all(text.count(" or ") == 2 and text.startswith("a photo of a class ") for text in written)
    asked.clear()
    for images in stream(4):
        method.predict(images.float())
    assert asked == []


@pytest.mark.parametrize("cached_prompts", [0, 2])
def test_answers_do_not_depend_on_the_cache(cached_prompts: int) -> None:
    clf = testing.small_classifier()
    small = ramen.create("clipartt", clf, iterations=2, cached_prompts=cached_prompts)
    large = ramen.create("clipartt", clf, iterations=2)
    for images in stream(3):
        assert torch.equal(small.predict(images.float()).logits, large.predict(images.float()).logits)


def test_one_image_has_nothing_to_be_told_from(tower_kind: str) -> None:
    """Its loss is constant: it is answered as without adaptation, also beside images that are not there."""
    clf = testing.small_classifier(tower_kind)
    method = ramen.create("clipartt", clf)
    image = torch.randn(1, 3, 32, 32)
    out = method.predict(image)
    assert not out.fallback.any()
    plain = ramen.create("clip", clf, template="a photo of a {}").predict(image).logits
    assert torch.equal(out.logits, plain)
    among_nan = torch.cat([torch.full((2, 3, 32, 32), torch.nan), image])
    torch.testing.assert_close(method.predict(among_nan).logits[2:], out.logits, rtol=0, atol=1e-4)
