"""Text towers as functions: of texts, kept ones too, of norm parameters and of vectors in place of words."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ramen.encoder.encoder import weight_dtype
from ramen.encoder.norms import find_replacement, replace_norms
from ramen.encoder.passes import FlatParameters
from ramen.images.preprocess import Preprocess
from ramen.models import prompts

TextEncoder = Callable[[list[str]], Tensor]


@dataclass(frozen=True)
class TwoTowers:
    """What a classifier is made of, as a library's loader returns it."""

    image_tower: nn.Module
    encode_text: TextEncoder
    tokenize: Callable[[list[str]], Tensor]  # to token numbers (texts, length)
    preprocess: Preprocess
    logit_scale: float
    logit_bias: float


# The last digits of an embedding depend on how many texts are encoded together. Texts are always encoded this
# many at a time, so that embeddings do not depend on what is in the cache.
_TEXTS_AT_A_TIME = 16


class TextCache:
    """Unit embeddings of words placed in a template.

    Embeddings depend on the words alone, not on a stream: a full cache, an empty cache and no cache give the
    same embeddings.

    Args:
        encode_text: Maps texts to embeddings ``(n, d)``.
        template: Text with one ``{}`` for the words.
        capacity: The most embeddings to keep; the least recently used are dropped first.
        like: Embeddings have this tensor's dtype and device.
    """

    def __init__(self, encode_text: TextEncoder, template: str, capacity: int, like: Tensor) -> None:
        self.encode_text = encode_text
        self.template = template
        self.capacity = capacity
        self._like = like
        self._known: OrderedDict[str, Tensor] = OrderedDict()  # most recently used last

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, words: Sequence[str]) -> Tensor:
        """Embeddings ``(n, d)``, one per item of ``words``."""
        missing = [text for text in dict.fromkeys(words) if text not in self._known]
        for start in range(0, len(missing), _TEXTS_AT_A_TIME):
            self._encode(missing[start : start + _TEXTS_AT_A_TIME])
        for text in words:
            self._known.move_to_end(text)
        rows = torch.stack([self._known[text] for text in words])
        while len(self._known) > self.capacity:
            self._known.popitem(last=False)
        return rows

    def _encode(self, words: list[str]) -> None:
        filled = words + words[-1:] * (_TEXTS_AT_A_TIME - len(words))
        embeddings = prompts.embed_classes(self.encode_text, filled, [self.template])[:, 0].to(self._like)
        for text, row in zip(words, embeddings, strict=False):
            self._known[text] = row.clone()  # a view would keep all rows of its batch alive


class AffinePrompts(Protocol):
    """Some texts, as a function of one flat vector of the norm parameters of what embeds them."""

    @property
    def base(self) -> Tensor:
        """The pretrained norm parameters ``(G,)``."""

    def __call__(self, affine: Tensor) -> Tensor:
        """Unit embeddings ``(texts, d)`` with these norm parameters ``(G,)``, to which gradients go back."""


@runtime_checkable
class AffineTextEncoder(Protocol):
    """A text encoder whose norm parameters can be adapted."""

    def __call__(self, texts: list[str]) -> Tensor:
        """Embeddings ``(texts, d)``."""

    def affine_prompts(self, texts: Sequence[str], at_once: int) -> AffinePrompts:
        """These texts as a function of norm parameters; ``at_once`` of them are embedded together."""


class TowerPrompts:
    """Texts for a text tower of which every norm layer that takes part is adapted.

    The tower is not changed: this works on a private copy of its structure, which shares all weights. One
    object serves one thread at a time.

    Args:
        model: What has the text tower; other towers in it do not matter.
        inputs: What the tower takes, by name, one row per text.
        embed: Of the model and these inputs: the embeddings, of any length.
        at_once: The most texts that are embedded together. If there are more, each part is computed once
            more when gradients are, instead of being kept for them.

    Attributes:
        base: The pretrained norm parameters ``(G,)``, fp32 (fp64 for a double tower).
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        embed: Callable[[nn.Module, Mapping[str, Tensor]], Tensor],
        at_once: int,
    ) -> None:
        self._embed, self._inputs, self._at_once = embed, dict(inputs), at_once
        device, dtype = next(model.parameters()).device, weight_dtype(model)
        wide = torch.promote_types(dtype, torch.float32)
        found = {name: m for name, m in model.named_modules() if find_replacement(m) is not None}
        if not found:
            raise ValueError(f"{type(model).__name__} has no norm layer to adapt")
        self._model, norms = replace_norms(model, found, device, dtype)

        # Norm layers that no text passes, such as those of an image tower, are not part of the vector.
        used: set[int] = set()
        hooks = [norm.register_forward_hook(lambda layer, *_: used.add(id(layer))) for norm in norms.values()]
        self._flat = FlatParameters(found, norms, device, wide)
        with torch.no_grad():
            self._part(self._flat.base, *(rows[:1] for rows in self._inputs.values()))
        for hook in hooks:
            hook.remove()
        found = {name: layer for name, layer in found.items() if id(norms[name]) in used}
        self._flat = FlatParameters(found, norms, device, wide)
        self.base: Tensor = self._flat.base

    def __call__(self, affine: Tensor) -> Tensor:
        parts = list(zip(*(rows.split(self._at_once) for rows in self._inputs.values()), strict=True))
        if len(parts) == 1 or not (torch.is_grad_enabled() and affine.requires_grad):
            return torch.cat([self._part(affine, *part) for part in parts])
        return torch.cat([checkpoint(self._part, affine, *part, use_reentrant=False) for part in parts])

    def _part(self, affine: Tensor, *rows: Tensor) -> Tensor:
        inputs = dict(zip(self._inputs, rows, strict=True))
        with self._flat.assigned(affine.to(self._flat.base)):
            embeddings = self._embed(self._model, inputs)
        return F.normalize(embeddings.to(self._flat.base.dtype), dim=-1)


class ContextPrompts(Protocol):
    """The prompts of some classes in a template, as a function of vectors for the words before the name."""

    @property
    def start(self) -> Tensor:
        """The vectors of the template's own words, ``(words, width)``."""

    def __call__(self, context: Tensor) -> Tensor:
        """Unit embeddings ``(B, C, d)`` of the classes for each context of ``(B, words, width)``.

        Gradients go back to ``context``.
        """


@runtime_checkable
class PromptTextEncoder(Protocol):
    """A text encoder that can also embed prompts of vectors."""

    def __call__(self, texts: list[str]) -> Tensor:
        """Embeddings ``(texts, d)``."""

    def context_prompts(self, template: str, classes: Sequence[str]) -> ContextPrompts:
        """The prompts of these classes in a template."""


class OpenClipPrompts:
    """Prompts for a text tower of open_clip, which is called as it is, with other vectors for some tokens.

    Its text tower must look its tokens up (``tower_with_tokens``), and the template have words before ``{}``.
    """

    def __init__(
        self,
        clip: nn.Module,
        tokenizer: Callable[[list[str]], Tensor],
        template: str,
        classes: Sequence[str],
    ) -> None:
        self._clip, device = clip, next(clip.parameters()).device
        self._tokens = tokenizer([template.replace("{}", name) for name in classes]).to(device)
        nothing, words = tokenizer(["", template.split("{}")[0].strip()]).to(device)
        # Tokens of the words: not the one at the start that every text has, nor the one at the end.
        first = _common(nothing, words)
        last = min(_common(words, prompt) for prompt in self._tokens)
        if last <= first:
            raise ValueError(f"template must have words before {{}} to learn from, got {template!r}")
        self._place = slice(first, last)
        with torch.no_grad():
            self._start: Tensor = self._lookup()(self._tokens[0, self._place]).clone()

    @property
    def start(self) -> Tensor:
        return self._start

    def __call__(self, context: Tensor) -> Tensor:
        contexts, classes = len(context), len(self._tokens)
        lookup = _WithContext(self._lookup(), context.repeat_interleave(classes, 0), self._place)
        tower = tower_with_tokens(self._clip)
        assert tower is not None
        replaced = _with_part(tower, "token_embedding", lookup)
        # Copies that share all else: the model itself is never changed, and other threads may use it.
        clip: Any = replaced if tower is self._clip else _with_part(self._clip, "text", replaced)
        embeddings: Tensor = clip.encode_text(self._tokens.repeat(contexts, 1), normalize=True)
        return embeddings.view(contexts, classes, -1)

    def _lookup(self) -> nn.Module:
        tower: Any = tower_with_tokens(self._clip)
        lookup: nn.Module = tower.token_embedding
        return lookup


def tower_with_tokens(clip: nn.Module) -> nn.Module | None:
    """The part of an open_clip model that looks tokens up; None for towers of other libraries within it."""
    for part in (clip, getattr(clip, "text", None)):
        if isinstance(part, nn.Module) and isinstance(getattr(part, "token_embedding", None), nn.Module):
            return part
    return None


class _WithContext(nn.Module):
    """Looks tokens up, and has other vectors in the place of some."""

    def __init__(self, lookup: nn.Module, context: Tensor, place: slice) -> None:
        super().__init__()
        self.lookup, self.context, self.place = lookup, context, place

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.lookup(tokens)
        before, after = vectors[:, : self.place.start], vectors[:, self.place.stop :]
        return torch.cat([before, self.context.to(vectors.dtype), after], 1)


def _with_part(module: nn.Module, name: str, part: nn.Module) -> nn.Module:
    """A copy of ``module`` with another part under this name; everything else is shared."""
    other = copy.copy(module)
    other._modules = {**module._modules, name: part}
    return other


def _common(one: Tensor, other: Tensor) -> int:
    """How many tokens at the start are the same in both."""
    return int((one == other).to(torch.int64).cumprod(0).sum())
