"""BATCLIP with both towers against two mutable towers, the text tower written out."""

import copy

import pytest
import torch
from torch import Tensor, nn

import ramen
from ramen import testing
from ramen.models import prompts
from ramen.models.classifier import MissingPartError
from tests.helpers.embedding_streams import stream
from tests.helpers.text_towers import CLASSES, text_classifier, text_model
from tests.oracles.bimodal_model import Bimodal, TextTower


def both(kind: str, templates: list[str], **options: object) -> tuple[Bimodal, ramen.Method]:
    oracle = Bimodal(kind, TextTower(*text_model()), CLASSES, templates, **options)
    return oracle, ramen.create(
        "batclip", text_classifier(kind), towers="both", templates=templates, **options
    )


@pytest.mark.parametrize(
    ("templates", "options"),
    [
        (["a photo of a {}."], {"lr": 1e-3}),
        (["itap of a {}.", "art of the {}."], {"lr": 5e-4, "optimizer": "adam", "weight_decay": 0.1}),
        (["a photo of a {}."], {"lr": 1e-4, "optimizer": "sgd", "match": 0.5, "separation": 2.0}),
    ],
    ids=str,
)
def test_equals_two_mutable_towers(tower_kind: str, templates: list[str], options: dict) -> None:
    oracle, method = both(tower_kind, templates, **options)
    fixed = ramen.create("batclip", text_classifier(tower_kind), towers="image", **options)
    furthest = 0.0
    for index, images in enumerate(stream(20, 6)):
        out = method.predict(images)
        torch.testing.assert_close(
            out.logits, oracle.predict(images), rtol=0, atol=1e-5, msg=lambda m, i=index: f"batch {i}: {m}"
        )
        furthest = max(furthest, float((out.logits - fixed.predict(images).logits).abs().max()))
    assert len(set(oracle.predicted)) > 1
    assert (oracle.texts[-1] - oracle.texts[0]).abs().max() > 1e-3  # the texts have moved
    assert furthest > 0.05


def test_fewer_prompts_at_once_change_nothing_but_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    clip, _ = text_model()
    rows: list[int] = []
    original = type(clip).encode_text

    def counted(self: nn.Module, tokens: Tensor, normalize: bool = False) -> Tensor:
        rows.append(len(tokens))
        return original(self, tokens, normalize)

    clf, batches = text_classifier("vit"), stream(4, 5)
    monkeypatch.setattr(type(clip), "encode_text", counted)
    found = {}
    for at_once in (1000, 2):
        method = ramen.create("batclip", clf, prompts_at_once=at_once, lr=1e-3)
        rows.clear()
        found[at_once] = torch.cat([method.predict(images).logits for images in batches])
        # once a batch, as the record says; if in parts, each part once more for its gradients
        assert sum(rows) == len(CLASSES) * len(batches) * (1 if at_once == 1000 else 2)
        assert max(rows) == min(at_once, len(CLASSES))
    torch.testing.assert_close(found[2], found[1000], rtol=0, atol=1e-9)
    assert "once forward and once back for each batch" in str(ramen.describe("batclip"))


def test_neither_tower_is_changed_and_reset_forgets_both() -> None:
    clip, _ = text_model()
    before = copy.deepcopy(clip.state_dict())
    method = ramen.create("batclip", text_classifier("vit"), lr=1e-2)
    assert method.towers == "both"
    first, second = stream(2, 5)
    base = method.state.content()["text_affine"]
    expected = [method.predict(images).logits for images in (first, second)]
    content = method.state.content()
    assert len(content["text_affine"]) == 2 * 32 * 3  # of one block's two norms and the last one
    assert not torch.equal(content["text_affine"], base)
    for name, value in clip.state_dict().items():
        assert torch.equal(value, before[name]), name
    method.reset()
    for images, logits in zip((first, second), expected, strict=True):
        assert torch.equal(method.predict(images).logits, logits)


def test_what_a_classifier_has_decides_unless_it_is_said() -> None:
    has, lacks = text_classifier("vit"), text_classifier("vit").class_embeddings
    method = ramen.create("batclip", has)
    assert method.parameters["towers"] == "both"
    assert "has its text tower" in method.parameters.why["towers"]
    for encode_text in (None, lambda texts: lacks[: len(texts)]):
        clf = ramen.ZeroShotClassifier(testing.small_tower(), lacks, encode_text=encode_text)
        method = ramen.create("batclip", clf)
        assert method.parameters["towers"] == "image"
        assert "no text tower" in method.parameters.why["towers"]
        with pytest.raises(
            MissingPartError, match="method 'batclip' with towers='both' adapts the text tower"
        ):
            ramen.create("batclip", clf, towers="both")
    assert "towers" not in ramen.create("batclip", has, towers="image").parameters.why


def test_a_rate_of_zero_answers_with_the_templates() -> None:
    clf = testing.small_classifier()
    images = stream(1, 4)[0].float()
    out = ramen.create("batclip", clf, templates="ensemble", lr=0.0).predict(images)
    torch.testing.assert_close(out.logits, out.zero_shot_logits, rtol=0, atol=1e-4)
    single = ramen.create("batclip", clf, lr=0.0).predict(images)
    expected = ramen.create("clip", clf, template=prompts.SINGLE[0]).predict(images)
    torch.testing.assert_close(single.logits, expected.logits, rtol=0, atol=1e-4)
