"""LAME: images of a batch that resemble each other get similar answers; nothing is learned.

Boudiaf et al., "Parameter-free Online Test-time Adaptation", CVPR 2022.
"""

import torch
from torch import Tensor

from ramen.methods._losses import nearest_others
from ramen.methods._method import Method
from ramen.methods._passes import Answer, Steps, embeddings_of_all
from ramen.methods._registry import MethodInfo, field, register

AFFINITIES = ("kernel", "neighbours", "linear")
_SMALLEST = 1e-10  # added to probabilities before the logarithm, as in LAME's code
# Rounds after which it is decided, for all of them together, whether one has stopped: on a GPU a round costs
# what its kernels cost to start. Any number gives the same answers.
_ROUNDS_AT_ONCE = 20
_NUMBERS_AT_ONCE = 1 << 20  # on a GPU, which does not stop: more rounds, as long as they are small


@register(
    MethodInfo(
        name="lame",
        title="LAME: Laplacian adjusted maximum-likelihood estimation",
        venue="CVPR 2022",
        paper="https://arxiv.org/abs/2201.05718",
        updates="nothing; the answers of a batch are smoothed over images that resemble each other",
        predicts_with="the one forward pass, its probabilities smoothed over the batch",
        batch_dependent=True,
        forwards=1,
        backwards=0,
        notes=(
            "from LAME's code: the kernel's width is the mean distance to the fifth nearest image, and each "
            "image is the first of its own; with the kernel and with linear affinities it also counts for "
            "itself; at most 100 rounds",
            "decided here: among neighbours an image itself is left out by its place; LAME's code leaves out "
            "the nearest one, which may be a duplicate",
            "decided here: the energy that decides when to stop is that of the present assignments, and "
            "counts each pair of images once",
            "affinities add up over the batch: the larger the batch, and the smaller the logit scale, the "
            "more the other images count",
            "made for streams whose neighbouring images are of few classes; on mixed streams its paper "
            "reports a loss",
        ),
    )
)
class LAME(Method):
    """Find the assignments of a batch that fit its probabilities and agree among similar images."""

    affinity: str = field(
        "kernel",
        choices=AFFINITIES,
        doc='How much two images count for each other. "kernel": exp(-d^2 / (2 sigma^2)) of their '
        "distance d, with sigma the mean distance to the image that is `neighbours`-th nearest; "
        '"neighbours": 1 for the nearest images, else 0; "linear": their cosine.',
    )
    neighbours: int = field(5, ge=1, doc='How many; for "kernel" including the image itself.')
    rounds: int = field(100, ge=1, doc="The most rounds.")
    tolerance: float = field(
        1e-8, ge=0, doc="Stop if the energy changes by no more than this part of itself."
    )

    recordable = True
    joins_groups = True

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Repeat: each image's evidence is its own probabilities and the assignments of similar images."""
        zero_shot, embeddings, usable = yield from embeddings_of_all(self, images, usable)
        # In fp64: an energy in fp32 would stop changing by chance.
        prior = (self.classifier.logits(embeddings).double().softmax(1) + _SMALLEST).log()
        affinities = self._affinities(embeddings, usable).double()

        log_assigned = prior.log_softmax(1)
        done = torch.zeros_like(prior[0, 0], dtype=torch.bool)
        last = torch.full_like(prior[:1, 0], torch.nan)
        at_once = _rounds_at_once(prior)
        for start in range(0, self.rounds, at_once):
            assigned, seen = log_assigned.exp(), []
            for _ in range(min(at_once, self.rounds - start)):
                seen.append(torch.addmm(prior, affinities, assigned))
                assigned = seen[-1].softmax(1)
            every = torch.stack(seen)
            found = torch.cat([log_assigned[None], every.log_softmax(2)])
            energies = _energies(found[:-1], prior, every, usable)
            before = torch.cat([last, energies[:-1]])
            stops = (energies - before).abs() <= self.tolerance * before.abs()
            # the assignments that the first round that stops has found; those of the last if none does
            first = torch.where(stops.any(), stops.to(torch.uint8).argmax(), len(stops))
            new = found.index_select(0, first.view(1))[0]
            log_assigned = torch.where(done, log_assigned, new)
            done, last = done | stops.any(), energies[-1:]
            if done.device.type == "cpu" and done:
                break  # a GPU would have to be waited for: there the remaining rounds change nothing
        return Answer(log_assigned.to(zero_shot.dtype), zero_shot, usable)

    def _affinities(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """How much the image of each column counts for that of the row, ``(B, B)``."""
        both = usable[:, None] & usable
        if self.affinity == "linear":
            return torch.where(both, embeddings @ embeddings.T, 0)
        # Without matrix products: of their rounding, equal images would have a distance.
        distances = torch.cdist(embeddings, embeddings, compute_mode="donot_use_mm_for_euclid_dist")
        if self.affinity == "neighbours":
            return nearest_others(-distances, usable, self.neighbours).to(distances.dtype)
        place = usable.sum().clamp(1, self.neighbours) - 1
        in_order = torch.where(both, distances, torch.inf).sort(1).values
        far = in_order.gather(1, place.expand(len(usable), 1))[:, 0]
        sigma = torch.where(usable, far, 0).sum() / usable.sum().clamp_min(1)
        # sigma may be 0, of images that are all the same
        kernel = torch.exp(-(distances / sigma).square() / 2)
        return torch.where(both, torch.where(distances > 0, kernel, 1), 0)


def _rounds_at_once(prior: Tensor) -> int:
    if prior.device.type == "cpu":
        return _ROUNDS_AT_ONCE
    return max(_ROUNDS_AT_ONCE, _NUMBERS_AT_ONCE // max(1, prior.numel()))


def _energies(log_assigned: Tensor, prior: Tensor, evidence: Tensor, usable: Tensor) -> Tensor:
    """The energy ``(R,)`` of each round's assignments ``(R, B, C)``, given what each image sees in it.

    ``evidence`` is the prior and the assignments of similar images, which count half: pairs count once.
    """
    terms = log_assigned.exp() * (log_assigned - torch.lerp(evidence, prior.expand_as(evidence), 0.5))
    return torch.where(usable[:, None], terms, 0).sum((1, 2))
