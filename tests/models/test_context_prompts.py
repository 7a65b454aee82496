"""Prompts of vectors against the text towers' own forward pass on tokens."""

import copy
from pathlib import Path

import pytest
import torch
from open_clip.model import CLIPTextCfg
from torch import Tensor, nn

import ramen
from ramen.models.open_clip import load_open_clip, load_tokenizer, text_encoder
from ramen.models.text import OpenClipPrompts, PromptTextEncoder, tower_with_tokens
from ramen.models.tiny_clip.model import FOLDER
from tests.helpers.tiny_models import TINY_VIT, add_tiny_model

CLASSES = ["cat", "traffic light", "a very long name of something"]
TEXT = {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
TOWERS: dict[str, dict] = {
    "clip": {},
    "custom": {"custom_text": True},
    "bidirectional": {"custom_text": True, "text_cfg": TEXT | {"no_causal_mask": True, "pool_type": "last"}},
    "class token": {"custom_text": True, "text_cfg": TEXT | {"embed_cls": True, "proj_bias": True}},
}
if "eos_id" in CLIPTextCfg.__dataclass_fields__:  # the lowest version of open_clip has no such towers
    TOWERS["end token"] = {"custom_text": True, "text_cfg": TEXT | {"pool_type": "eos", "eos_id": 49407}}


def loaded(folder: Path, kind: str) -> tuple[nn.Module, object]:
    settings = {"text_cfg": TEXT, **TOWERS[kind]}
    name = add_tiny_model(folder, f"ContextPrompts-{kind.replace(' ', '-')}", TINY_VIT, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip = load_open_clip(name, None)
    return clip.double(), load_tokenizer(name)


@pytest.mark.parametrize("kind", TOWERS)
@pytest.mark.parametrize(
    ("template", "words"), [("a photo of a {}.", 4), ("graffiti: {}", 2), ("a sketch of the {} outside", 4)]
)
def test_equals_the_tower_at_the_templates_own_words(
    tmp_path: Path, kind: str, template: str, words: int
) -> None:
    clip, tokenizer = loaded(tmp_path, kind)
    prompts = OpenClipPrompts(clip, tokenizer, template, CLASSES)
    assert prompts.start.shape == (words, 32)
    tokens = tokenizer([template.replace("{}", name) for name in CLASSES])
    with torch.no_grad():
        expected = clip.encode_text(tokens, normalize=True)
        found = prompts(torch.stack([prompts.start, prompts.start]))
    assert found.shape == (2, 3, 16)
    torch.testing.assert_close(found, torch.stack([expected, expected]), rtol=0, atol=1e-12)


def test_equals_the_tower_at_other_words(tmp_path: Path) -> None:
    """Vectors of other words in the same places; each row of contexts has its own."""
    clip, tokenizer = loaded(tmp_path, "clip")
    prompts = OpenClipPrompts(clip, tokenizer, "a photo of a {}.", CLASSES)
    others = ["a photo of a", "the big house with", "a photo with the"]
    tokens = tokenizer([f"{words} {name}." for words in others for name in CLASSES])
    with torch.no_grad():
        expected = clip.encode_text(tokens, normalize=True).view(3, 3, -1)
        context = clip.token_embedding(tokens[::3, 1:5])
        torch.testing.assert_close(prompts(context), expected, rtol=0, atol=1e-12)
    assert (expected[0] - expected[1]).abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["clip", "custom"])
def test_gradients_are_those_of_differences(tmp_path: Path, kind: str) -> None:
    clip, tokenizer = loaded(tmp_path, kind)
    prompts = OpenClipPrompts(clip, tokenizer, "a photo of a {}.", CLASSES[:2])
    assert torch.autograd.gradcheck(
        lambda context: prompts(context)[:, :, :2], prompts.start[None].clone().requires_grad_()
    )


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    clip, tokenizer = loaded(tmp_path, "custom")
    before = copy.deepcopy(clip.state_dict())
    parts = {name: id(part) for name, part in clip.named_modules()}
    encode_text = text_encoder(clip, tokenizer)
    assert isinstance(encode_text, PromptTextEncoder)
    prompts = encode_text.context_prompts("a photo of a {}.", CLASSES)
    context = prompts.start[None].clone().requires_grad_()
    prompts(context).sum().backward()
    assert context.grad is not None
    assert {name: id(part) for name, part in clip.named_modules()} == parts
    assert all(torch.equal(tensor, before[name]) for name, tensor in clip.state_dict().items())
    assert all(parameter.grad is None for parameter in clip.parameters())
    assert copy.deepcopy(encode_text) is encode_text


def test_a_template_without_words_is_refused(tmp_path: Path) -> None:
    clip, tokenizer = loaded(tmp_path, "clip")
    with pytest.raises(ValueError, match="template"):
        OpenClipPrompts(clip, tokenizer, "{} in a photo", CLASSES)


def test_towers_of_other_libraries_only_embed_texts() -> None:
    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text = nn.Linear(3, 16)

        def encode_text(self, tokens: Tensor, normalize: bool) -> Tensor:
            return nn.functional.normalize(self.text(tokens.float()), dim=-1)

    foreign = Foreign()
    assert tower_with_tokens(foreign) is None
    encode_text = text_encoder(foreign, lambda texts: torch.tensor([[len(text), 1, 2] for text in texts]))
    assert not isinstance(encode_text, PromptTextEncoder)
    assert encode_text(["one", "two, three"]).shape == (2, 16)


def test_the_tiny_clip_has_them() -> None:
    clf = ramen.ZeroShotClassifier.from_open_clip(f"local-dir:{FOLDER}", None, CLASSES)
    assert isinstance(clf.encode_text, PromptTextEncoder)
    prompts = clf.encode_text.context_prompts("a photo of a {}.", CLASSES)
    expected = clf.encode_text([f"a photo of a {name}." for name in CLASSES])
    with torch.no_grad():
        torch.testing.assert_close(prompts(prompts.start[None])[0], expected)
