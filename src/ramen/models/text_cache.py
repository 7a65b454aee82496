"""Embeddings of texts that occur repeatedly, each computed once."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from ramen.models import prompts
from ramen.models.open_clip import TextEncoder

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
