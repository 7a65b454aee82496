"""What might defend Ramen against an attacker, to be measured by the study of poisoned streams.

A quota needs to know who sent an image, which a method does not: it is a rule for whoever lets images into
a stream. So these are variants for the study, not methods of the library.
"""

from collections import Counter, deque
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ramen.methods._pass_sharing import FirstPass, OwnStep
from ramen.methods.ramen import Ramen
from ramen.utils import checks

QUOTA = 0.1  # of what was learned lately
WINDOW = 100  # images that count as lately
USERS = 20  # that the benign images of a study come from, in turn
ATTACKER = 0  # who the attacker is; users are 1 to USERS


def user_of(number: int) -> int:
    """The user who sends a benign image, by its place among them."""
    return 1 + number % USERS


class SourceQuota:
    """Of the images that were learned last, at most a share may come from one source.

    Until so many were learned, a source may have that share of the whole window.

    >>> quota = SourceQuota(share=0.5, window=4)
    >>> [quota.admits(source) for source in (7, 7, 7, 8, 8, 7)]
    [True, True, False, True, True, False]
    >>> quota.admits(9), quota.admits(7)  # the first of 7 leaves the window when 9 comes
    (True, True)

    Args:
        share: Of the window.
        window: In images that were admitted.
    """

    def __init__(self, share: float = QUOTA, window: int = WINDOW) -> None:
        self._most = checks.number("share", share, 0) * checks.integer("window", window, 1)
        self._lately: deque[int] = deque(maxlen=window)
        self._counts: Counter[int] = Counter()

    def admits(self, source: int) -> bool:
        """Whether an image may be learned from; if so, it counts."""
        if self._counts[source] + 1 > self._most:
            return False
        if len(self._lately) == self._lately.maxlen:
            self._counts[self._lately[0]] -= 1
        self._lately.append(source)
        self._counts[source] += 1
        return True


class QuotaRamen(Ramen):
    """Ramen that learns from every source no more than its quota; what is above it is answered zero-shot."""

    recordable = False  # it decides on the host

    sources: Tensor  # of the images that come next, one number each

    def __init__(self, *args: Any, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        self.quota = SourceQuota()

    def clear(self) -> None:
        """Forget everything, also who has sent what."""
        super().clear()
        self.quota = SourceQuota()

    def step(self, first: FirstPass, usable: Tensor) -> OwnStep:
        """Ramen's step, without what is above its quota."""
        pairs = zip(self.sources.tolist(), usable.tolist(), strict=True)
        admitted = [is_usable and self.quota.admits(source) for source, is_usable in pairs]
        return super().step(first, usable & torch.tensor(admitted, device=usable.device))


class EvidenceRamen(Ramen):
    """Ramen whose step grows with what is stored, until the memory could fill a whole support set."""

    recordable = False  # it looks at the memory

    def step(self, first: FirstPass, usable: Tensor) -> OwnStep:
        """Ramen's step, shorter as long as little is stored."""
        whole, base = super().step(first, usable), self.classifier.encoder.base
        evidence = min(1.0, len(self.memory) / (self.topk * self.classifier.num_classes))
        return replace(whole, affine=base + evidence * (whole.affine - base))


DEFENCES: dict[str, type[Ramen]] = {"quota per source": QuotaRamen, "evidence-scaled steps": EvidenceRamen}
