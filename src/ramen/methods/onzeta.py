"""OnZeta: labels balanced over the stream, and class proxies of images that learn from them.

Qian and Hu, "Online Zero-Shot Classification with CLIP", ECCV 2024.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._method import Method
from ramen.methods._passes import Answer, Steps, embeddings_of_all
from ramen.methods._registry import MethodInfo, field, register

_IMAGES_AT_ONCE = 32  # whose logits are followed together; any number gives the same answers
_SHORTEST = 1e-6  # length of a proxy after a step, before it is made 1 again


@register(
    MethodInfo(
        name="onzeta",
        title="OnZeta: online zero-shot transfer",
        venue="ECCV 2024",
        paper="https://arxiv.org/abs/2408.13320",
        updates="nothing in the model; a class prior, and proxies of the classes among the images",
        predicts_with="the one forward pass: text probabilities with the prior, mixed with the proxies'",
        batch_dependent=True,
        forwards=1,
        backwards=0,
        notes=(
            "from a public benchmark's code: prior_lr 20, proxy_lr 0.5, balance 1, a temperature of the "
            "proxies four times that of the text, proxy_share 0.8 for ImageNet and 0.4 elsewhere",
            "images are processed one at a time: each is answered, then prior and proxies learn from it; "
            "answers depend on earlier images, also of the same batch, but not on how the stream is split "
            "into batches",
            "decided here: the proxies' share grows as sqrt(t / horizon) and stays at proxy_share from the "
            "horizon on; published is the length of the stream, which nobody knows online",
            "decided here: prior_lr is meant for a logit scale of 100 and multiplied by logit scale / 100: "
            "the prior is added to logits",
            "the prior assumes that all classes come equally often: a stream whose classes do not, or come "
            "in blocks, needs a smaller balance",
        ),
    )
)
class OnZeta(Method):
    """Raise classes that come too rarely; learn a vector per class that predicts the result from images."""

    proxy_share: float = field(
        0.4, ge=0, le=1, doc="The proxies' share in the answer once the horizon is reached."
    )
    horizon: int = field(10_000, ge=1, doc="After how many images that is; about the length of the stream.")
    proxy_lr: float = field(
        0.5, ge=0, doc="Step size of the proxies, divided by the square root of the number of images."
    )
    prior_lr: float = field(20.0, ge=0, doc="Likewise of the class prior, at a logit scale of 100.")
    balance: float = field(
        1.0,
        ge=0,
        le=1,
        doc="How much of the mean probability 1/C each class is to have at least, from 0 to 1.",
    )
    temperature: float = field(4.0, gt=0, doc="Of the proxies' probabilities, in units of the text's.")

    recordable = True
    joins_groups = True

    proxies: Tensor
    prior: Tensor
    learned: Tensor

    def setup(self) -> None:
        texts = self.classifier.class_embeddings
        self.add_state("proxies", texts)
        self.add_state("prior", texts.new_zeros(len(texts)), minimum=0)
        self.add_state("learned", torch.zeros((), dtype=torch.int64, device=texts.device), minimum=0)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Answer image by image, each with the prior and the proxies that the earlier ones have left."""
        zero_shot, embeddings, usable = yield from embeddings_of_all(self, images, usable)
        number = (self.learned + usable.cumsum(0)).clamp_min(1).to(embeddings.dtype)
        rates = usable / number.sqrt()  # 0 for images that must leave no trace
        pieces = zip(embeddings.split(_IMAGES_AT_ONCE), rates.split(_IMAGES_AT_ONCE), strict=True)
        answers = [self._answer(*piece) for piece in pieces]
        self.learned = self.learned + usable.sum()

        log_text, log_proxies = (torch.cat(parts) for parts in zip(*answers, strict=True))
        share = (self.proxy_share * (number / self.horizon).sqrt().clamp_max(1))[:, None]
        logits = torch.logaddexp(log_text + torch.log1p(-share), log_proxies + share.log())
        return Answer(logits, zero_shot, usable)

    def _answer(self, embeddings: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Log probabilities of the text with the prior, and of the proxies; both learn from every image.

        The proxies are followed only as far as these images see them, as the cosines of ``v - step z``, made
        unit again, follow from those of v and of z; they take all steps at once in the end.
        """
        clf, sharpness = self.classifier, self.classifier.logit_scale / self.temperature
        prior_rates, proxy_rates = (
            (self.prior_lr * clf.logit_scale / 100) * rates,
            self.proxy_lr * sharpness * rates,
        )
        text_logits = clf.logits(embeddings)
        seen = sharpness * (embeddings @ self.proxies.T)  # by each image, of the proxies as they are now
        similar = sharpness * (embeddings @ embeddings.T)
        minus_half_own = similar.diagonal() / -2
        prior, one = self.prior, torch.ones_like(self.prior[:1])
        balance = self.balance / clf.num_classes
        texts, own_answers, moves, lengths = [], [], [], []
        for place in range(len(seen)):
            # 1. The text's probabilities with the prior, which rises for classes that come too rarely.
            texts.append((text_logits[place] + prior).log_softmax(0))
            balanced = texts[-1].exp()
            prior = torch.addcmul(prior, balanced - balance, prior_rates[place], value=-1).clamp_min(0)
            # 2. The proxies' probabilities, and a step along the gradient of their cross entropy to 1.
            own = seen[place]
            own_answers.append(own.log_softmax(0))
            step = proxy_rates[place] * (own_answers[-1].exp() - balanced)
            # the squared length after it: 1 - 2 step cosine + step^2, as embeddings have length 1
            away = torch.addcmul(own, step, minus_half_own[place])
            squared = torch.addcmul(one, step, away, value=-2 / sharpness)
            shrink = squared.clamp_min(_SHORTEST**2).rsqrt()
            seen = torch.addcmul(seen, similar[:, place, None], step, value=-1) * shrink
            moves.append(step)
            lengths.append(shrink)
        steps, shrinking = torch.stack(moves), torch.stack(lengths)
        shrunk = shrinking.flip(0).cumprod(0).flip(0)  # by its own and all later steps
        moved = shrunk[0][:, None] * self.proxies - (steps * shrunk).T @ embeddings
        finite = moved.isfinite().all(1, keepdim=True)  # unless steps have cancelled a proxy again and again
        self.proxies = torch.where(finite, F.normalize(moved, dim=1), self.proxies)
        self.prior = prior
        return torch.stack(texts), torch.stack(own_answers)
