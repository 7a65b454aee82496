"""Train the tiny CLIP that comes with the package: ``python training/tiny_clip.py --out DIR``.

Run it from the root of the repository. It draws images with captions that say what is in them, and trains the
two towers to match them. Corruptions and the unseen styles are left out: a training image is at most a little
blurry, noisy, dark, bright or pale.
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

from ramen.data.drawings import styles
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.drawings.tiny import NAMES, DrawnImages, draw_images

MODEL_FILE = "open_clip_model.safetensors"
CONFIG_FILE = "open_clip_config.json"
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_CHUNK = 2000  # images that one task of the process pool draws


# What captions say beside the object. Style words keep the domain in the image embedding: a model trained on
# class names alone learns to ignore how an image was made, and then the neighbours of an image are not of its
# domain.
PLAIN = (
    "a {}.",
    "the {}.",
    "a picture of a {}.",
    "a photo of a {}.",
    "itap of a {}.",
    "art of the {}.",
    "an image of the {}.",
)

STYLES: dict[str, tuple[str, ...]] = {
    "flat": ("clip art of a {}.", "a flat drawing of a {}.", "a {} icon."),
    "cartoon": ("a cartoon {}.", "a {} in a video game.", "a comic of the {}."),
    "line drawing": ("a line drawing of a {}.", "an outline of the {}.", "a {} in ink."),
    "pencil": ("a pencil sketch of a {}.", "a sketch of the {}.", "a shaded drawing of a {}."),
    "silhouette": ("a silhouette of a {}.", "the shadow of a {}.", "a black {}."),
    "crayon": ("a crayon drawing of a {}.", "a {} in wax crayon.", "a child's drawing of a {}."),
    "watercolour": ("a watercolour of a {}.", "a painting of the {}.", "a soft painted {}."),
    "origami": ("a origami {}.", "a {} folded from paper.", "a paper {}."),
    "photo": ("a 3d render of a {}.", "a {} with a shadow.", "a realistic photo of the {}."),
}

_BAD = ("a bad photo of the {}.", "a bad picture of a {}.")
QUALITIES: dict[str, tuple[str, ...]] = {
    "blurry": ("a blurry photo of a {}.", "a {} out of focus.", *_BAD),
    "noisy": ("a noisy photo of a {}.", "a grainy picture of the {}.", *_BAD),
    "dark": ("a dark photo of a {}.", "the {} at night.", *_BAD),
    "bright": ("a bright photo of a {}.", "an overexposed {}.", *_BAD),
    "pale": ("a pale photo of a {}.", "a {} in low contrast.", *_BAD),
}

SIZES: dict[str, tuple[str, ...]] = {
    "small": ("a photo of the small {}.", "a small {}.", "a tiny {}."),
    "large": ("a photo of the large {}.", "a large {}.", "a big {}."),
}

# Everything that a caption may add to the name of the object, numbered; 0 adds nothing.
ADDITIONS: tuple[tuple[str, ...], ...] = (
    PLAIN,
    *STYLES.values(),
    *QUALITIES.values(),
    *SIZES.values(),
)
FIRST_STYLE = 1
FIRST_QUALITY = FIRST_STYLE + len(STYLES)
FIRST_SIZE = FIRST_QUALITY + len(QUALITIES)


def captions(name: str, addition: int) -> list[str]:
    """All captions of an object with one addition."""
    return [frame.format(word) for frame in ADDITIONS[addition] for word in NAMES[name]]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, apart from the code and the hardware."""

    pictures: int = 400_000  # drawn images
    steps: int = 4_000
    batch: int = 2_048
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 500
    plain_captions: float = 0.35  # share of captions that name only the object
    spoilt: float = 0.15  # share of images with one of the qualities
    seed: int = 0
    embed_dim: int = 128
    width: int = 192
    layers: int = 6
    patch: int = 8
    text_width: int = 64
    text_layers: int = 3


def model_config(recipe: Recipe) -> dict[str, Any]:
    """The configuration from which open_clip builds the model."""
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
    """The images, their objects and their styles (as indices); the same for any number of workers."""
    rng = np.random.default_rng(recipe.seed)
    objects = rng.integers(len(OBJECTS), size=recipe.pictures)
    style_indices = rng.integers(len(styles.TRAINED), size=recipe.pictures)
    object_names, style_names = list(OBJECTS), list(styles.TRAINED)
    starts = range(0, recipe.pictures, _CHUNK)
    with ProcessPoolExecutor(workers) as pool:
        chunks = list(
            pool.map(
                draw_images,
                [[object_names[o] for o in objects[s : s + _CHUNK]] for s in starts],
                [[style_names[k] for k in style_indices[s : s + _CHUNK]] for s in starts],
                [(recipe.seed, 1, s) for s in starts],
            )
        )
    drawn = DrawnImages(
        np.concatenate([c.pixels for c in chunks]), np.concatenate([c.extents for c in chunks])
    )
    return drawn, torch.from_numpy(objects), torch.from_numpy(style_indices)


class CaptionTable:
    """Every caption, tokenised once.

    ``tokens[object, addition]`` has the captions of that pair in its first ``counts[object, addition]`` rows.
    """

    def __init__(self, tokenizer: Any, device: torch.device) -> None:
        texts = [[captions(name, a) for a in range(len(ADDITIONS))] for name in OBJECTS]
        longest = max(len(cell) for row in texts for cell in row)
        self.counts = torch.tensor([[len(cell) for cell in row] for row in texts], device=device)
        padded = [cell + cell[:1] * (longest - len(cell)) for row in texts for cell in row]
        tokens = tokenizer([text for cell in padded for text in cell])
        self.tokens = tokens.view(len(OBJECTS), len(ADDITIONS), longest, -1).to(device)

    def draw(self, objects: Tensor, additions: Tensor, generator: torch.Generator) -> Tensor:
        """One random caption per pair of object and addition."""
        counts = self.counts[objects, additions]
        uniform = torch.rand(len(objects), device=objects.device, generator=generator)
        chosen: Tensor = self.tokens[objects, additions, (uniform * counts).long()]
        return chosen


def spoil(images: Tensor, qualities: Tensor, generator: torch.Generator) -> Tensor:
    """Images in [0, 1], each made a little blurry, noisy, dark, bright or pale as ``qualities`` says.

    Args:
        images: ``(B, 3, H, W)``.
        qualities: Per image 0 for none, or one more than the index of its quality.
        generator: Draws the strength of each and the noise.
    """
    strength = torch.rand(len(images), 1, 1, 1, device=images.device, generator=generator)
    noise = torch.randn(images.shape, device=images.device, generator=generator)
    neighbour = 0.1 + 0.15 * strength  # its weight in the blur
    rows = F.pad(images, (0, 0, 1, 1), mode="replicate")
    blurred = neighbour * (rows[:, :, :-2] + rows[:, :, 2:]) + (1 - 2 * neighbour) * images
    columns = F.pad(blurred, (1, 1, 0, 0), mode="replicate")
    blurred = neighbour * (columns[..., :-2] + columns[..., 2:]) + (1 - 2 * neighbour) * blurred
    mean = images.mean((2, 3), keepdim=True)
    variants = [
        images,
        blurred,
        images + (0.015 + 0.035 * strength) * noise,
        images * (0.75 - 0.3 * strength),
        images + 0.08 + 0.1 * strength,
        mean + (images - mean) * (0.75 - 0.3 * strength),
    ]
    chosen = torch.stack(variants, dim=1)[torch.arange(len(images), device=images.device), qualities]
    return chosen.clamp(0, 1)


def shift(images: Tensor, generator: torch.Generator, max_pixels: int = 2) -> Tensor:
    """Move each image by up to ``max_pixels`` in each direction, repeating its edge."""
    count, _, height, width = images.shape
    moves = torch.randint(
        -max_pixels, max_pixels + 1, (2, count, 1), device=images.device, generator=generator
    )
    rows = (torch.arange(height, device=images.device) + moves[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + moves[1]).clamp(0, width - 1)
    index = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


# -- training -------------------------------------------------------------------------------------------


def matches(objects: Tensor, attributes: Tensor, additions: Tensor) -> Tensor:
    """Whether each caption of the batch (column) is true of each image of the batch (row)."""
    same_object = objects[:, None] == objects
    mentioned = F.one_hot(additions, len(ADDITIONS)).to(attributes.dtype)
    return same_object & (attributes @ mentioned.T > 0)


def contrastive_loss(images: Tensor, texts: Tensor, true: Tensor, scale: Tensor) -> Tensor:
    """Cross-entropy of images over captions and of captions over images; all true pairs share the target."""
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
    drawn, objects, style_indices = draw_training_set(recipe)
    print(f"{recipe.pictures:,} images drawn in {time.perf_counter() - started:.0f} s", flush=True)

    torch.manual_seed(recipe.seed)
    config = model_config(recipe)["model_cfg"]
    model = CLIP(**config).to(device)
    tokenizer = open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"])
    pixels = torch.from_numpy(drawn.pixels).to(device)
    objects, style_indices = objects.to(device), style_indices.to(device)
    large = torch.from_numpy(drawn.extents).to(device) > float(np.median(drawn.extents))
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
        qualities = spoilt * pick(1, len(QUALITIES) + 1, (recipe.batch,))
        images = pixels[batch].permute(0, 3, 1, 2).float() / 255
        images = (spoil(shift(images, generator), qualities, generator) - mean) / std

        attributes = _attributes(style_indices[batch], qualities, large[batch])
        mentionable = attributes.clone()
        mentionable[:, 0] = 0
        additions = torch.multinomial(mentionable, 1, generator=generator)[:, 0]
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


def _attributes(style_indices: Tensor, qualities: Tensor, large: Tensor) -> Tensor:
    """Per image, as 0 or 1, which additions to a caption are true of it; addition 0 (none) always is."""
    count = len(ADDITIONS)
    attributes = F.one_hot(FIRST_STYLE + style_indices, count)
    attributes += F.one_hot(FIRST_SIZE + large.long(), count)
    spoilt = torch.where(qualities > 0, FIRST_QUALITY + qualities - 1, 0)
    attributes += F.one_hot(spoilt, count)
    attributes[:, 0] = 1
    return attributes.float()


def _cosine(recipe: Recipe, step: int) -> float:
    """The share of the learning rate at a step: a linear warm-up, then half a cosine down to 0."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def save(model: Any, recipe: Recipe, folder: Path) -> str:
    """Write the model in open_clip's format (fp16) and the recipe; return the SHA-256 of the weights."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {n: t.detach().cpu().to(torch.float16).contiguous() for n, t in model.state_dict().items()}
    save_file(weights, folder / MODEL_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(model_config(recipe), indent=2) + "\n")
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")
    return hashlib.sha256((folder / MODEL_FILE).read_bytes()).hexdigest()


def main() -> None:
    """Train the tiny CLIP and save it in open_clip's format."""
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
