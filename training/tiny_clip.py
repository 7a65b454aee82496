"""How the tiny CLIP was made: ``python training/tiny_clip.py --out DIR`` makes it again.

Pictures are drawn, captions say what is in them, and the two towers learn which belong together. Corruptions
and the unseen styles have no part in it: a picture is at most a little blurred, noisy, dark, bright or pale.
"""

import argparse
import hashlib
import json
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.data.drawings import captions, styles
from ramen.data.drawings.images import DrawnImages, draw_images
from ramen.data.drawings.shapes import OBJECTS

MODEL_FILE = "open_clip_model.safetensors"
CONFIG_FILE = "open_clip_config.json"
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_CHUNK = 2000


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, beside the code and the hardware."""

    pictures: int = 400_000
    steps: int = 4_000
    batch: int = 2_048
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 500
    plain_captions: float = 0.35  # share of captions that name the object alone
    spoilt: float = 0.15  # share of pictures with one of the qualities
    seed: int = 0
    embed_dim: int = 128
    width: int = 192
    layers: int = 6
    patch: int = 8
    text_width: int = 64
    text_layers: int = 3


def model_config(recipe: Recipe) -> dict[str, Any]:
    """What open_clip needs to build the model."""
    return {
        "model_cfg": {
            "embed_dim": recipe.embed_dim,
            "vision_cfg": {
                "image_size": styles.SIZE,
                "layers": recipe.layers,
                "width": recipe.width,
                "head_width": 32,
                "patch_size": recipe.patch,
            },
            "text_cfg": {
                "context_length": 24,
                "vocab_size": 49408,
                "width": recipe.text_width,
                "heads": 2,
                "layers": recipe.text_layers,
            },
        },
        "preprocess_cfg": {"mean": _MEAN, "std": _STD},
    }


# -- data -----------------------------------------------------------------------------------------------


def draw_training_set(recipe: Recipe, workers: int | None = None) -> tuple[DrawnImages, Tensor, Tensor]:
    """The pictures, their objects and their styles; the same for any number of workers."""
    rng = np.random.default_rng(recipe.seed)
    objects = rng.integers(len(OBJECTS), size=recipe.pictures)
    drawn_in = rng.integers(len(styles.TRAINED), size=recipe.pictures)
    object_names, style_names = list(OBJECTS), list(styles.TRAINED)
    starts = range(0, recipe.pictures, _CHUNK)
    with ProcessPoolExecutor(workers) as pool:
        chunks = list(
            pool.map(
                draw_images,
                [[object_names[o] for o in objects[s : s + _CHUNK]] for s in starts],
                [[style_names[k] for k in drawn_in[s : s + _CHUNK]] for s in starts],
                [(recipe.seed, 1, s) for s in starts],
            )
        )
    pictures = DrawnImages(
        np.concatenate([c.pixels for c in chunks]), np.concatenate([c.extents for c in chunks])
    )
    return pictures, torch.from_numpy(objects), torch.from_numpy(drawn_in)


class CaptionTable:
    """Every caption, tokenised once: ``tokens[object, addition]`` has them in the first ``counts`` rows."""

    def __init__(self, tokenizer: Any, device: torch.device) -> None:
        texts = [[captions.captions(name, a) for a in range(len(captions.ADDITIONS))] for name in OBJECTS]
        most = max(len(cell) for row in texts for cell in row)
        self.counts = torch.tensor([[len(cell) for cell in row] for row in texts], device=device)
        filled = [cell + cell[:1] * (most - len(cell)) for row in texts for cell in row]
        tokens = tokenizer([text for cell in filled for text in cell])
        self.tokens = tokens.view(len(OBJECTS), len(captions.ADDITIONS), most, -1).to(device)

    def draw(self, objects: Tensor, additions: Tensor, generator: torch.Generator) -> Tensor:
        """A random caption for each pair."""
        counts = self.counts[objects, additions]
        which = torch.rand(len(objects), device=objects.device, generator=generator)
        chosen: Tensor = self.tokens[objects, additions, (which * counts).long()]
        return chosen


def spoil(images: Tensor, qualities: Tensor, generator: torch.Generator) -> Tensor:
    """Pictures in [0, 1] made a little blurry, noisy, dark, bright or pale, as ``qualities`` says."""
    strength = torch.rand(len(images), 1, 1, 1, device=images.device, generator=generator)
    noise = torch.randn(images.shape, device=images.device, generator=generator)
    side = 0.1 + 0.15 * strength
    rows = F.pad(images, (0, 0, 1, 1), mode="replicate")
    blurred = side * (rows[:, :, :-2] + rows[:, :, 2:]) + (1 - 2 * side) * images
    columns = F.pad(blurred, (1, 1, 0, 0), mode="replicate")
    blurred = side * (columns[..., :-2] + columns[..., 2:]) + (1 - 2 * side) * blurred
    mean = images.mean((2, 3), keepdim=True)
    ways = [
        images,
        blurred,
        images + (0.015 + 0.035 * strength) * noise,
        images * (0.75 - 0.3 * strength),
        images + 0.08 + 0.1 * strength,
        mean + (images - mean) * (0.75 - 0.3 * strength),
    ]
    chosen = torch.stack(ways, dim=1)[torch.arange(len(images), device=images.device), qualities]
    return chosen.clamp(0, 1)


def shift(images: Tensor, generator: torch.Generator, most: int = 2) -> Tensor:
    """Move each picture by up to ``most`` pixels, its edge continued."""
    count, _, height, width = images.shape
    moves = torch.randint(-most, most + 1, (2, count, 1), device=images.device, generator=generator)
    rows = (torch.arange(height, device=images.device) + moves[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + moves[1]).clamp(0, width - 1)
    number = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[number, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


# -- training -------------------------------------------------------------------------------------------


def matches(objects: Tensor, attributes: Tensor, additions: Tensor) -> Tensor:
    """Which caption (column) is true of which picture (row), batch against batch."""
    same_object = objects[:, None] == objects
    told = F.one_hot(additions, len(captions.ADDITIONS)).to(attributes.dtype)
    return same_object & (attributes @ told.T > 0)


def contrastive_loss(images: Tensor, texts: Tensor, true: Tensor, scale: Tensor) -> Tensor:
    """Every picture finds the captions that are true of it, and every caption its pictures."""
    logits = scale * images @ texts.T
    targets = true.to(logits.dtype)
    by_image = F.cross_entropy(logits, targets / targets.sum(1, keepdim=True))
    by_text = F.cross_entropy(logits.T, targets.T / targets.T.sum(1, keepdim=True))
    return (by_image + by_text) / 2


def train(recipe: Recipe, device: torch.device) -> Any:
    """The trained open_clip model."""
    import open_clip
    from open_clip.model import CLIP

    started = time.perf_counter()
    pictures, objects, drawn_in = draw_training_set(recipe)
    print(f"{recipe.pictures:,} pictures drawn in {time.perf_counter() - started:.0f} s", flush=True)

    torch.manual_seed(recipe.seed)
    config = model_config(recipe)["model_cfg"]
    model = CLIP(**config).to(device)
    tokenizer = open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"])
    pixels = torch.from_numpy(pictures.pixels).to(device)
    objects, drawn_in = objects.to(device), drawn_in.to(device)
    large = torch.from_numpy(pictures.extents).to(device) > float(np.median(pictures.extents))
    table = CaptionTable(tokenizer, device)
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (_MEAN, _STD))
    generator = torch.Generator(device=device).manual_seed(recipe.seed)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=recipe.lr,
        betas=(0.9, 0.98),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_cosine, recipe))
    pick = partial(torch.randint, device=device, generator=generator)
    for step in range(recipe.steps):
        batch = pick(recipe.pictures, (recipe.batch,))
        spoilt = torch.rand(recipe.batch, device=device, generator=generator) < recipe.spoilt
        qualities = spoilt * pick(1, len(captions.QUALITIES) + 1, (recipe.batch,))
        images = pixels[batch].permute(0, 3, 1, 2).float() / 255
        images = (spoil(shift(images, generator), qualities, generator) - mean) / std

        attributes = _attributes(drawn_in[batch], qualities, large[batch])
        told = attributes.clone()
        told[:, 0] = 0
        additions = torch.multinomial(told, 1, generator=generator)[:, 0]
        plain = torch.rand(recipe.batch, device=device, generator=generator) < recipe.plain_captions
        additions = torch.where(plain, 0, additions)
        tokens = table.draw(objects[batch], additions, generator)

        with torch.autocast(device.type, dtype=torch.bfloat16):
            image_features = model.encode_image(images, normalize=True)
            text_features = model.encode_text(tokens, normalize=True)
        true = matches(objects[batch], attributes, additions)
        loss = contrastive_loss(image_features.float(), text_features.float(), true, model.logit_scale.exp())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        if step % 500 == 0 or step == recipe.steps - 1:
            print(
                f"step {step:5} loss {loss.item():.3f} scale {model.logit_scale.exp().item():.1f}", flush=True
            )
    return model.eval()


def _attributes(drawn_in: Tensor, qualities: Tensor, large: Tensor) -> Tensor:
    """For each picture, as 0 and 1, the additions that are true of it; number 0 always is."""
    count = len(captions.ADDITIONS)
    attributes = F.one_hot(captions.FIRST_STYLE + drawn_in, count)
    attributes += F.one_hot(captions.FIRST_SIZE + large.long(), count)
    spoilt = torch.where(qualities > 0, captions.FIRST_QUALITY + qualities - 1, 0)
    attributes += F.one_hot(spoilt, count)
    attributes[:, 0] = 1
    return attributes.float()


def _cosine(recipe: Recipe, step: int) -> float:
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def save(model: Any, recipe: Recipe, folder: Path) -> str:
    """Write the model as open_clip loads it (fp16) and the recipe; the weights' SHA-256."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {n: t.detach().cpu().to(torch.float16).contiguous() for n, t in model.state_dict().items()}
    save_file(weights, folder / MODEL_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(model_config(recipe), indent=2) + "\n")
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")
    return hashlib.sha256((folder / MODEL_FILE).read_bytes()).hexdigest()


def main() -> None:
    """Train the tiny CLIP and save it as open_clip loads it."""
    parser = argparse.ArgumentParser(prog="python training/tiny_clip.py", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = vars(parser.parse_args())
    out, device = options.pop("out"), torch.device(options.pop("device"))
    recipe = Recipe(**options)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums in every run
    torch.use_deterministic_algorithms(True)
    started = time.perf_counter()
    digest = save(train(recipe, device), recipe, out)
    print(f"{out / MODEL_FILE}: sha256 {digest}, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
