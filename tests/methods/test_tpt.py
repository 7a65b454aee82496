"""TPT against a text tower written out, one image at a time, with torch's AdamW on a parameter."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ramen
from tests.helpers.embedding_streams import stream, tower_features
from tests.helpers.text_towers import CLASSES, text_classifier, text_model
from tests.oracles.torchvision_views import views_with_torchvision
from tests.oracles.view_methods import SCALE, by_entropy

DEFAULTS = {
    "lr": 5e-3,
    "steps": 1,
    "kept": 0.1,
    "template": "a photo of a {}.",
    "prompts_at_once": 1000,
}


def embed(context: Tensor) -> Tensor:
    """The prompts' embeddings ``(C, d)``: token by token, block by block."""
    clip, tokenizer = text_model()
    rows = []
    for name in CLASSES:
        tokens = tokenizer([f"a photo of a {name}."])[0]
        vectors = [clip.token_embedding.weight[token] for token in tokens]
        vectors[1:5] = list(context)
        x = torch.stack(vectors)[None] + clip.positional_embedding
        for block in clip.transformer.resblocks:
            y = block.ln_1(x)
            x = x + block.attn(y, y, y, need_weights=False, attn_mask=clip.attn_mask)[0]
            x = x + block.mlp(block.ln_2(x))
        rows.append(clip.ln_final(x)[0, int(tokens.argmax())] @ clip.text_projection)
    return F.normalize(torch.stack(rows), dim=1)


def published(embeddings: Tensor, settings: dict) -> Tensor:
    """Logits of the first view after the steps."""
    clip, tokenizer = text_model()
    start = clip.token_embedding(tokenizer(["a photo of a"])[0, 1:5])
    context = nn.Parameter(start.detach().clone())
    optimizer = torch.optim.AdamW([context], lr=settings["lr"])
    number = max(1, int(settings["kept"] * len(embeddings)))
    with torch.no_grad():
        chosen = by_entropy(SCALE * embeddings @ embed(context).T)[:number]
    for _ in range(settings["steps"]):
        texts = embed(context)
        mean = torch.stack([(SCALE * texts @ embeddings[view]).softmax(0) for view in chosen]).mean(0)
        optimizer.zero_grad()
        (-(mean * mean.log()).sum()).backward()
        optimizer.step()
    with torch.no_grad():
        return SCALE * embed(context) @ embeddings[0]


@pytest.mark.parametrize(
    ("batches", "views", "changes"),
    [
        (20, 12, {}),
        (5, 8, {"steps": 3, "kept": 0.5, "lr": 2e-2, "prompts_at_once": 3}),
        (2, 3, {"kept": 1.0, "prompts_at_once": 7}),
        (1, 64, {}),
    ],
    ids=str,
)
def test_equals_one_image_at_a_time(batches: int, views: int, changes: dict, tower_kind: str) -> None:
    settings = DEFAULTS | changes
    clf = text_classifier(tower_kind)
    method = ramen.create("tpt", clf, views=views, seed=3, **settings)
    plain = ramen.create("clip", clf)
    furthest = 0.0
    for images in stream(batches, 3):
        out = method.predict(images)
        for image, found in zip(images, out.logits, strict=True):
            embeddings = tower_features(tower_kind, views_with_torchvision(image, views, seed=3))
            torch.testing.assert_close(found, published(embeddings, settings), rtol=0, atol=1e-5)
        furthest = max(furthest, float((out.logits - plain.predict(images).logits).abs().max()))
    assert furthest > 0.05


def test_a_rate_of_zero_is_the_single_template(tower_kind: str) -> None:
    clf, images = text_classifier(tower_kind), stream(1)[0]
    out = ramen.create("tpt", clf, lr=0.0, views=3).predict(images)
    expected = ramen.create("clip", clf).predict(images)
    torch.testing.assert_close(out.logits, expected.logits, rtol=0, atol=1e-5)  # whose texts are in fp32
    torch.testing.assert_close(out.zero_shot_logits, expected.zero_shot_logits)


def test_other_templates_have_other_words() -> None:
    clf, images = text_classifier("vit"), stream(1)[0]
    method = ramen.create("tpt", clf, lr=0.0, views=2, template="itap of a {}.")
    out = method.predict(images)
    torch.testing.assert_close(out.logits, out.zero_shot_logits, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="template"):
        ramen.create("tpt", clf, template="{} outside")
    with pytest.raises(ValueError, match=r"one \{\} for the class name"):
        ramen.create("tpt", clf, template="a photo")


def test_the_text_tower_runs_as_often_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """All classes twice for each image, and once when the method is created."""
    clip, _ = text_model()
    rows: list[int] = []
    original = type(clip).encode_text

    def counted(self: nn.Module, tokens: Tensor, normalize: bool = False) -> Tensor:
        rows.append(len(tokens))
        return original(self, tokens, normalize)

    clf = text_classifier("vit")
    monkeypatch.setattr(type(clip), "encode_text", counted)
    method = ramen.create("tpt", clf, views=2)
    assert rows == [3]
    rows.clear()
    method.predict(stream(1, 4)[0])
    assert sum(rows) == 2 * 3 * 4
