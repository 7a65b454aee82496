"""ZERO: the surest of many random views of an image vote; nothing is learned.

Farina et al., "Frustratingly Easy Test-Time Adaptation of Vision-Language Models", NeurIPS 2024; and the view
ensemble VTE of Döbler et al., "A Lost Opportunity for Vision-Language Models", arXiv 2405.14977.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._losses import RANDOM_VIEWS
from ramen.methods._registry import MethodInfo, field, register
from ramen.methods._views import (
    ViewMethod,
    number_kept,
    surest,
    surest_first,
)

_SMALLEST_SHARE = 1e-6  # of the votes, for classes that have none: logits must be finite
COMBINED = ("votes", "mean")


@register(
    MethodInfo(
        name="zero",
        title="ZERO: a vote of the surest views, at temperature zero",
        venue="NeurIPS 2024",
        paper="https://arxiv.org/abs/2405.18330",
        updates="nothing; each image is answered by its own views",
        predicts_with="the forward passes of all views: the votes of the surest",
        batch_dependent=False,
        forwards=64,
        backwards=0,
        random=True,
        notes=(
            "from ZERO's code: 64 views, the 19 with the lowest entropies vote, and a tie is decided by the "
            "views that were left out: by the vote of the surest that is for one of the tied classes. If "
            "there is none, by the tied classes' logits in the surest of them",
            "decided here: that last rule is as stated; ZERO's code inverts a list of class numbers instead "
            "of a mask, and so takes an arbitrary class. If no view was left out, the surest view decides",
            "logits are logarithms of the shares of votes, at least 1e-6: probabilities are multiples of "
            "1/19, and poorly calibrated. The vote that decides a tie counts",
            "combined='mean' with kept=0.1 is VTE (arXiv 2405.14977): the mean embedding of the surest "
            "tenth, not made unit again",
            RANDOM_VIEWS,
        ),
    )
)
class Zero(ViewMethod):
    """Answer an image with the class that most of its surest views vote for."""

    kept: float = field(
        0.3,
        gt=0,
        le=1,
        doc="The share of the views that count, those with the lowest entropies; at least one view.",
    )
    combined: str = field(
        "votes",
        choices=COMBINED,
        doc='"votes" for ZERO: each view votes for its likeliest class. "mean" for VTE: logits of the '
        "mean of the views' embeddings.",
    )

    def from_views(self, embeddings: Tensor) -> Tensor:
        """Count the votes, or average the embeddings."""
        logits = self.view_logits(embeddings)
        if self.combined == "mean":
            return self.classifier.logits(surest(embeddings, logits, self.kept).mean(1))
        votes = _votes(logits, number_kept(self.views, self.kept))
        return (votes / votes.sum(1, keepdim=True)).clamp_min(_SMALLEST_SHARE).log()


def _votes(logits: Tensor, kept: int) -> Tensor:
    """How many votes each class has, ``(B, C)``: never the same number for the first two."""
    views, classes = logits.shape[1:]
    order = surest_first(logits)
    labels = logits.argmax(2).gather(1, order)  # the surest view's first
    votes = F.one_hot(labels[:, :kept], classes).sum(1)

    # 1. If classes tie, the surest view that was left out and is for one of them has a vote too.
    tied = votes == votes.amax(1, keepdim=True)
    decides = tied.gather(1, labels)
    decides[:, :kept] = False
    winner = labels.gather(1, decides.to(torch.uint8).argmax(1, keepdim=True))

    # 2. If there is no such view, the surest of those left out decides by its logits.
    surest_other = order[:, kept if kept < views else 0]
    others = logits.gather(1, surest_other[:, None, None].expand(-1, 1, classes)).squeeze(1)
    likeliest = torch.where(tied, others, -torch.inf).argmax(1, keepdim=True)
    winner = torch.where(decides.any(1, keepdim=True), winner, likeliest)

    is_tie = tied.sum(1, keepdim=True) > 1
    return votes.scatter_add(1, winner, is_tie.to(votes.dtype)).to(logits.dtype)
