"""OnZeta: labels balanced over the stream, and class proxies of images that learn from them.

Qian and Hu, "Online Zero-Shot Classification with CLIP", ECCV 2024.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.kernels import proxies
from ramen.methods._answers import Answer
from ramen.methods._info import MethodInfo
from ramen.methods._pass_sharing import EmbeddingMethod, without_refused
from ramen.methods._registry import register
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group


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
class OnZeta(EmbeddingMethod):
    """Raise classes that come too rarely; learn a vector per class that predicts the result from images.

    Args:
        classifier: What it adapts.
        proxy_share: The proxies' share in the answer once the horizon is reached.
        horizon: After how many images that is; about the length of the stream.
        proxy_lr: Step size of the proxies, divided by the square root of the number of images.
        prior_lr: Likewise of the class prior, at a logit scale of 100.
        balance: How much of the mean probability 1/C each class is to have at least, from 0 to 1.
        temperature: Of the proxies' probabilities, in units of the text's.
        seed: Has no effect.
        group: As for every method.
    """

    recordable = True
    joins_groups = True

    proxies: Tensor
    prior: Tensor
    learned: Tensor

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        proxy_share: float = 0.4,
        horizon: int = 10_000,
        *,
        proxy_lr: float = 0.5,
        prior_lr: float = 20.0,
        balance: float = 1.0,
        temperature: float = 4.0,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.proxy_share = checks.number("proxy_share", proxy_share, 0)
        self.horizon = checks.integer("horizon", horizon, 1)
        self.proxy_lr = checks.number("proxy_lr", proxy_lr, 0)
        self.prior_lr = checks.number("prior_lr", prior_lr, 0)
        self.balance = checks.number("balance", balance, 0)
        self.temperature = checks.number("temperature", temperature, 0, exclusive=True)
        for name in ("proxy_share", "balance"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} must be at most 1, got {getattr(self, name):g}")
        texts = classifier.class_embeddings
        self.add_state("proxies", texts)
        self.add_state("prior", texts.new_zeros(len(texts)), minimum=0)
        self.add_state("learned", torch.zeros((), dtype=torch.int64, device=texts.device), minimum=0)

    def from_embeddings(self, embeddings: Tensor, usable: Tensor) -> Answer:
        """Answer image by image, each with the prior and the proxies that the earlier ones have left."""
        zero_shot = self.classifier.logits(embeddings)
        embeddings, usable = without_refused(embeddings, usable)
        number = (self.learned + usable.cumsum(0)).clamp_min(1).to(embeddings.dtype)
        rates = usable / number.sqrt()  # 0 for images that must leave no trace
        at_once = proxies.images_at_once(self.proxies)
        pieces = zip(embeddings.split(at_once), rates.split(at_once), strict=True)
        answers = [self._answer(*piece) for piece in pieces]
        self.learned = self.learned + usable.sum()

        log_text, log_proxies = (torch.cat(parts) for parts in zip(*answers, strict=True))
        share = (self.proxy_share * (number / self.horizon).sqrt().clamp_max(1))[:, None]
        logits = torch.logaddexp(log_text + torch.log1p(-share), log_proxies + share.log())
        return Answer(logits, zero_shot, usable)

    def _answer(self, embeddings: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Log probabilities of the text with the prior, and of the proxies; both learn from every image.

        The proxies are followed only as far as these images see them, and take all steps at once in the end.
        """
        clf, sharpness = self.classifier, self.classifier.logit_scale / self.temperature
        start = proxies.Start(
            text_logits=clf.logits(embeddings),
            seen=sharpness * (embeddings @ self.proxies.T),
            similar=sharpness * (embeddings @ embeddings.T),
            prior=self.prior,
            prior_rates=(self.prior_lr * clf.logit_scale / 100) * rates,
            proxy_rates=(self.proxy_lr * sharpness) * rates,
        )
        found = proxies.follow(start, self.balance / clf.num_classes, sharpness)
        shrunk = found.shrinking.flip(0).cumprod(0).flip(0)  # by its own and all later steps
        moved = shrunk[0][:, None] * self.proxies - (found.steps * shrunk).T @ embeddings
        finite = moved.isfinite().all(1, keepdim=True)  # unless steps have cancelled a proxy again and again
        self.proxies = torch.where(finite, F.normalize(moved, dim=1), self.proxies)
        self.prior = found.prior
        return found.log_text, found.log_proxies
