"""Prompts whose words before the class name are vectors, with gradients: for methods that learn them."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


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

    Args:
        clip: A model whose text tower looks its tokens up: see ``tower_with_tokens``.
        tokenizer: From texts to token numbers ``(texts, length)``.
        template: With ``{}`` for the class name, and words before it.
        classes: Class names.
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
        """The vectors of the template's own words, ``(words, width)``."""
        return self._start

    def __call__(self, context: Tensor) -> Tensor:
        """Unit embeddings ``(B, C, d)`` of the classes for each context of ``(B, words, width)``."""
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
