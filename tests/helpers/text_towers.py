"""A small open_clip model in fp64 whose texts matter, and classifiers that have its text tower."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import ramen
from ramen import testing
from ramen.models.open_clip import load_open_clip, load_tokenizer, text_encoder
from tests.helpers.tiny_models import TINY_VIT, add_tiny_model
from tests.oracles.view_methods import SCALE

CLASSES = ["cat", "dog", "traffic light"]


@cache
def text_model() -> tuple[nn.Module, object]:
    """The model and its tokenizer."""
    with TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        name = add_tiny_model(Path(folder), "SmallText", TINY_VIT)
        clip = load_open_clip(name, None).double()
        with torch.no_grad():
            for parameter in clip.transformer.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(3)  # a fresh tower's words hardly matter
        return clip, load_tokenizer(name)


@cache
def text_classifier(kind: str, fused: bool | str = "auto") -> ramen.ZeroShotClassifier:
    """``testing.small_tower`` of a kind, with this text tower; its class embeddings have another template."""
    encode_text = text_encoder(*text_model())
    texts = encode_text([f"itap of a {name}." for name in CLASSES])
    tower = testing.small_tower(kind).double()
    return ramen.ZeroShotClassifier(
        tower, texts, SCALE, classes=CLASSES, encode_text=encode_text, fused=fused
    )
