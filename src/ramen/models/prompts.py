"""Prompt templates and the class embeddings made from them.

The published results use one template for the row "CLIP" and seven for "Ensemble" and for every method. The
released code ends each template with a full stop; the paper prints them without. This changes the tokens and
therefore every number, so both spellings are here. The default is the code's.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ramen.utils.checks import nearest

if TYPE_CHECKING:
    from torch import Tensor

SINGLE = ("a photo of a {}.",)
ENSEMBLE = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
SINGLE_WITHOUT_PERIOD = tuple(template.removesuffix(".") for template in SINGLE)
ENSEMBLE_WITHOUT_PERIOD = tuple(template.removesuffix(".") for template in ENSEMBLE)
# The templates of WATT's own code: one more, and two of them without a full stop.
WATT = (*SINGLE_WITHOUT_PERIOD, ENSEMBLE_WITHOUT_PERIOD[0], *ENSEMBLE[1:])

TEMPLATE_SETS = {
    "single": SINGLE,
    "ensemble": ENSEMBLE,
    "single-without-period": SINGLE_WITHOUT_PERIOD,
    "ensemble-without-period": ENSEMBLE_WITHOUT_PERIOD,
    "watt": WATT,
}

_PROMPTS_AT_A_TIME = 256


def check_classes(classes: Sequence[str], *, allow_same_names: bool = False) -> tuple[str, ...]:
    """Check class names and replace their underscores by spaces; there must be one, and no two the same.

    ``allow_same_names`` accepts equal names, as in the usual list of ImageNet classes; no prompt can
    distinguish such classes.

    >>> check_classes(["polar_bear", "fox"])
    ('polar bear', 'fox')
    """
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise TypeError(f"classes must be a sequence of names, got {classes!r}")
    classes = list(classes)
    for name in classes:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"classes must be non-empty strings, got {name!r}")
    names = tuple(name.replace("_", " ").strip() for name in classes)
    if not names:
        raise ValueError("classes must name at least one class, got an empty list")
    if not allow_same_names and len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            f"classes must differ from each other, got more than one {', '.join(map(repr, repeated))}"
        )
    return names


def check_templates(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Look up a template set by name, or check that each given template has one ``{}`` for the class name."""
    if isinstance(templates, str):
        if templates not in TEMPLATE_SETS:
            raise ValueError(f"templates: there is no set {templates!r}{nearest(templates, TEMPLATE_SETS)}")
        return TEMPLATE_SETS[templates]
    templates = tuple(templates)
    if not templates:
        raise ValueError("templates must hold at least one template, got an empty list")
    for template in templates:
        if not isinstance(template, str) or template.count("{}") != 1:
            raise ValueError(f"templates must each have one {{}} for the class name, got {template!r}")
    return templates


def check_distinct_prompts(
    tokenize: "Callable[[list[str]], Tensor]", classes: Sequence[str], templates: Sequence[str]
) -> None:
    """Raise ValueError if two classes have the same tokens in every template: no model can distinguish them.

    Tokenizers cut what is too long, and many ignore case.

    Args:
        tokenize: Maps texts to token numbers ``(texts, length)``.
        classes: Class names.
        templates: Strings with ``{}`` for the class name.
    """
    alike, length = [list(classes)], 0  # groups of classes that are the same in the templates so far
    for template in templates:  # the first is enough, unless classes are the same in it
        rows = iter(tokenize([template.replace("{}", name) for names in alike for name in names]).tolist())
        parts: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for number, names in enumerate(alike):
            for name in names:
                tokens = tuple(next(rows))
                parts.setdefault((number, tokens), []).append(name)
                length = len(tokens)
        alike = [names for names in parts.values() if len(names) > 1]
        if not alike:
            return
    named = " and ".join(map(repr, alike[0]))
    raise ValueError(
        f"classes must differ for the model's tokenizer, which reads at most {length} tokens of a prompt: it "
        f"gets the same tokens for {named}. Shorten or rename these, or pass allow_same_names=True"
    )


def embed_classes(
    encode_text: "Callable[[list[str]], Tensor]", classes: Sequence[str], templates: Sequence[str]
) -> "Tensor":
    """Embed every class in every template: ``(classes, templates, d)``, each of unit length."""
    import torch

    from ramen.utils.numerics import plain_numerics

    prompts = [template.replace("{}", name) for name in classes for template in templates]
    with torch.no_grad(), plain_numerics():
        parts = [
            encode_text(prompts[i : i + _PROMPTS_AT_A_TIME]).float()
            for i in range(0, len(prompts), _PROMPTS_AT_A_TIME)
        ]
        embeddings = torch.nn.functional.normalize(torch.cat(parts), dim=-1)
    return embeddings.view(len(classes), len(templates), -1)


def average_templates(embeddings: "Tensor") -> "Tensor":
    """One unit vector per class from ``(classes, templates, d)``: normalise, average, normalise."""
    import torch
    import torch.nn.functional as F

    embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return F.normalize(F.normalize(embeddings, dim=-1).mean(1), dim=-1)
