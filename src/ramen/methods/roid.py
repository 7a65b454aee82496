"""ROID: certain and diverse images teach, weights stay near the pretrained ones, a prior corrects answers.

Marsden, Doebler, Yang, "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and
Prior Correction", WACV 2024. The other filter of weights is that of Lee, Chang, "Continual Momentum Filtering
on Parameter Space for Online Test-time Adaptation", ICLR 2024.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.statistics import of_batch
from ramen.images.augment import augment_without_noise, draw
from ramen.kernels.graphs import holds
from ramen.methods._losses import entropy
from ramen.methods._method import Method
from ramen.methods._optim import OnlineWeights
from ramen.methods._passes import Answer, refuse_overflowing
from ramen.methods._registry import (
    MEAN,
    MOMENTUM,
    STATISTICS,
    STD,
    WITHOUT_DECAY,
    MethodInfo,
    field,
    register,
)
from ramen.methods._views import NormalisedPixels
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.distributed import Peers

PRIORS = ("log", "logits", "off")
FILTERS = ("fixed", "kalman")
_MEMORY = 0.9  # of the moving average of probabilities
_LARGEST, _SMALLEST_RATIO = 0.99, 1e-5  # bounds of the soft likelihood ratio
_PROCESS_NOISE = 0.005 / 38_400  # per parameter: 38,400 are those of the ViT-B that CMF was made on
_DRIFT = 0.99  # how much of CMF's hidden weights, and of its weights, stays
_LEAST_GAIN, _FULL_GAIN = 0.89, 0.9999


@register(
    MethodInfo(
        name="roid",
        title="ROID: weight ensembling, diversity weighting and prior correction (also CMF)",
        venue="WACV 2024",
        paper="https://arxiv.org/abs/2306.00650",
        updates="weight and bias of all norm layers, online, held near the pretrained ones: never reset",
        predicts_with="the forward pass before the update, corrected by the classes of the batch",
        batch_dependent=True,
        forwards=2,
        backwards=2,
        random=True,
        notes=(
            "from ROID's code: the weights by diversity and certainty, the soft likelihood ratio, the "
            "symmetric cross-entropy with an augmented image, whose gradient flows through both passes, one "
            "augmentation per batch, SGD with Nesterov's momentum",
            "filter='kalman' is CMF (ICLR 2024); as in its code the noise grows with the number of norm "
            "parameters. Decided here: the variance starts at 0, as the hidden weights start at the "
            "pretrained ones",
            "ROID's code multiplies the logits by the prior (prior='logits'), whose effect depends on their "
            "common offset: CLIP's logits are all near 20 at a logit scale of 100, and the prior would "
            "outweigh them. Decided here: its logarithm is added, which multiplies the probabilities",
            "decided here: all images are augmented and encoded, so that every batch takes the same passes; "
            "ROID's code leaves out those that are not diverse, with the same result",
            "ROID's code divides the losses by the batch size of its settings, also for a short last batch "
            "(batch_size=64, for one); by default the number of usable images",
            "decided here: if all images are equally diverse or certain, as a single one is, the scaled "
            "value is 0, which is 0/0 in ROID's code: the weight is 1",
            "normalised images are brought back to [0, 1] for the augmentation, which needs the classifier's "
            "preprocessing or mean and std. Random draws depend on the seed and the number of usable images",
            "BatchNorm keeps its running statistics; ROID's own code uses the batch's (statistics='batch'), "
            "in the second pass those of the images that are kept",
        ),
    )
)
class Roid(Method):
    """Take one step per batch on the certain and diverse images, then go back a little."""

    lr: float = field(
        2.5e-4,
        ge=0,
        doc="Step size. ROID's own: 2.5e-4 (ImageNet-C and DomainNet, batches of 64 to 128), 1e-3 with "
        '"adam" (CIFAR-C, batches of 200).',
    )
    temperature: float = field(
        1 / 3, gt=0, doc="Of the weights of images: diversity times certainty is divided by it."
    )
    source_share: float = field(
        0.01, ge=0, le=1, doc="The share of the pretrained weights in the weights after each step."
    )
    prior: str = field(
        "log",
        choices=PRIORS,
        doc='How the classes of the batch correct its answers: "log" adds the logarithm of their smoothed '
        'frequencies to the logits, "logits" multiplies the logits by the frequencies, "off" does '
        "nothing.",
    )
    filter: str = field(
        "fixed",
        choices=FILTERS,
        saved=True,
        doc='What mixes in pretrained weights: "fixed" takes `source_share` of them, "kalman" is CMF\'s '
        "filter of hidden weights, for which `source_share` has no effect.",
    )
    batch_size: int | None = field(
        None, ge=1, doc="What losses are divided by; the number of usable images of each batch if not given."
    )
    statistics: str = STATISTICS
    optimizer: str = field(
        "sgd",
        choices=WITHOUT_DECAY,
        saved=True,
        doc='"sign" moves every parameter by `lr` against the sign of its gradient, "sgd" along the '
        'gradient with Nesterov\'s momentum, "adam" as `torch.optim.Adam` does.',
    )
    momentum: float = MOMENTUM
    mean: Sequence[float] | None = MEAN
    std: Sequence[float] | None = STD
    seed: int = field(0, ge=0, doc="Decides the augmentation.")

    joins_groups = True

    affine: Tensor
    probabilities: Tensor  # moving average over all images
    seen: Tensor  # usable images so far
    hidden: Tensor  # CMF's hidden weights and their variance
    variance: Tensor

    def setup(self) -> None:
        classifier = self.classifier
        self._normalised = NormalisedPixels(self.info.name, classifier, self.mean, self.std)
        self.mean, self.std = self._normalised.mean, self._normalised.std
        self._weights = OnlineWeights(
            self, self.optimizer, self.lr, momentum=self.momentum, nesterov=True, name="affine"
        )
        uniform = torch.full_like(classifier.class_embeddings[:, 0], 1 / classifier.num_classes)
        self.add_state("probabilities", uniform, minimum=0)
        self.add_state("seen", torch.zeros((), dtype=torch.int64, device="cpu"), minimum=0)
        if self.filter == "kalman":
            base = classifier.encoder.base
            self.add_state("hidden", base)
            self.add_state("variance", base.new_zeros(()), minimum=0)
        # The host draws the augmentation: on a GPU the passes are recorded, not the step.
        lesson = _Lesson(classifier, self.temperature, self.batch_size, self.statistics, self.peers)
        self._lesson = self._recorder.record(lesson) if self.peers is None else lesson

    @property
    def batch_dependent(self) -> bool:
        """Whether predictions depend on the rest of the batch: through the prior or its statistics."""
        return self.prior != "off" or self.statistics == "batch"

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Predict with the weights so far, take one step, go back towards the pretrained weights."""
        embeddings, gradient = self._learn(images, usable)
        if not holds(gradient.isfinite().all()):
            images, usable = refuse_overflowing(self.classifier, images, usable)
            embeddings, gradient = self._learn(images, usable)
        usable = usable & embeddings.isfinite().all(1)
        logits = self.classifier.logits(embeddings)
        count = self.summed(usable.sum())
        taken = count > 0

        # 1. The step, and the way back.
        self._weights.step(gradient, taken)
        if self.filter == "kalman":
            self._filter_hidden(taken)
        else:
            mixed = torch.lerp(self.affine, self.classifier.encoder.base, self.source_share)
            self.affine = torch.where(taken, mixed, self.affine)

        # 2. The moving average, and the classes of the batch, which correct its answers.
        summed = torch.where(usable[:, None], logits.softmax(1), 0).sum(0)
        mean = self.summed(summed) / count.clamp_min(1)
        moved = torch.lerp(mean, self.probabilities, _MEMORY)
        self.probabilities = torch.where(taken, moved, self.probabilities)
        self.seen = self.seen + count.cpu()
        return Answer(self._corrected(logits, mean, count), None, usable)

    # -- the gradient -------------------------------------------------------------------------------

    def _learn(self, images: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings of the images as they are, and the gradient of both losses."""
        embeddings, gradient = self._lesson(
            images, self._augmented(images), usable, self.affine, self.probabilities
        )
        return embeddings, self.summed(gradient)

    def _augmented(self, images: Tensor) -> Tensor:
        drawn = draw((images.shape[2], images.shape[3]), self.generator(place=int(self.seen)))
        return self._normalised.changed(images, lambda pixels: augment_without_noise(pixels, drawn))

    # -- weights and answers ------------------------------------------------------------------------

    def _filter_hidden(self, taken: Tensor) -> None:
        """CMF: hidden weights that drift to the pretrained ones and observe the step; weights follow them."""
        noise = min(_PROCESS_NOISE * len(self.affine), 1.0)
        expected = torch.lerp(self.classifier.encoder.base, self.hidden, _DRIFT)
        variance = _DRIFT**2 * self.variance + noise
        stays = ((1 - noise) / (variance + 1 - noise)).clamp_min(_LEAST_GAIN)
        stays = torch.where(stays > _FULL_GAIN, 1.0, stays)
        hidden = stays * expected + (1 - stays) * self.affine
        self.hidden = torch.where(taken, hidden, self.hidden)
        self.variance = torch.where(taken, stays * variance, self.variance)
        self.affine = torch.where(taken, torch.lerp(hidden, self.affine, _DRIFT), self.affine)

    def _corrected(self, logits: Tensor, mean: Tensor, count: Tensor) -> Tensor:
        """Logits with the smoothed frequencies of the classes in the batch."""
        if self.prior == "off":
            return logits
        classes = self.classifier.num_classes
        least = torch.clamp_min(1 / count.clamp_min(1), 1 / classes)
        smoothing = least / mean.max().clamp_min(torch.finfo(mean.dtype).tiny)
        frequencies = (mean + smoothing) / (1 + smoothing * classes)
        # Without a usable image nothing is known of the classes, and no answer is corrected.
        frequencies = torch.where(count > 0, frequencies, 1.0)
        return logits + frequencies.log() if self.prior == "log" else logits * frequencies


@dataclass(frozen=True)
class _Lesson:
    """Both passes of a batch, as a function of tensors."""

    classifier: ZeroShotClassifier
    temperature: float
    batch_size: int | None
    statistics: str
    peers: Peers | None

    def __call__(
        self, images: Tensor, augmented: Tensor, usable: Tensor, affine: Tensor, probabilities: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The embeddings of the images as they are, and this process's gradient of both losses."""
        clf = self.classifier
        with torch.enable_grad():
            # Leaves of their own for both passes: each is a backward pass through the encoder.
            first, second = (affine.detach().requires_grad_() for _ in range(2))
            plain = clf.encode(images, first, statistics=of_batch(self.statistics, usable))
            weights = self._image_weights(clf.logits(plain.detach()), usable, probabilities)
            changed = clf.encode(augmented, second, statistics=of_batch(self.statistics, weights > 0))
            ends = [embeddings.detach().requires_grad_() for embeddings in (plain, changed)]
            loss = self._loss(clf.logits(ends[0]), clf.logits(ends[1]), weights, usable)
            to_plain, to_changed = torch.autograd.grad(loss, ends)
            gradient = clf.gradient((changed * to_changed).sum(), second)
            gradient = gradient + clf.gradient((plain * to_plain).sum(), first)
        return plain.detach(), gradient

    @torch.no_grad()
    def _image_weights(self, logits: Tensor, usable: Tensor, probabilities: Tensor) -> Tensor:
        """The more diverse and certain, the more an image counts; below the mean diversity, not at all."""
        usable = usable & logits.isfinite().all(1)
        logits = torch.where(usable[:, None], logits, 0)
        alike = F.cosine_similarity(logits.softmax(1), probabilities[None])
        usable_of_all = self._whole(usable)
        diversity = _scaled(1 - alike, self._whole(1 - alike), usable_of_all)
        certainty = _scaled(-entropy(logits), self._whole(-entropy(logits)), usable_of_all)
        count = self._summed(usable.sum()).clamp_min(1)
        mean = self._summed(torch.where(usable, diversity, 0).sum()) / count
        weights = torch.exp(diversity * certainty / self.temperature)
        return torch.where(usable & (diversity >= mean), weights, 0)

    def _loss(self, logits: Tensor, augmented: Tensor, weights: Tensor, usable: Tensor) -> Tensor:
        """The soft likelihood ratio of the images, and the cross-entropies of both predictions of each."""
        kept = (weights > 0)[:, None]
        log_p, log_q = (torch.where(kept, rows, 0).log_softmax(1) for rows in (logits, augmented))
        p, q = log_p.exp(), log_q.exp()
        bounded = p.clamp_max(_LARGEST)
        ratio = -(bounded * torch.log(bounded / (1 - bounded) + _SMALLEST_RATIO)).sum(1)
        agreement = -0.5 * (p * log_q + q * log_p).sum(1)
        count = self._summed(usable.sum()).clamp_min(1) if self.batch_size is None else self.batch_size
        return (weights * (ratio + agreement)).sum() / count

    def _whole(self, rows: Tensor) -> Tensor:
        """One row per image of the global batch."""
        if self.peers is None:
            return rows
        return self.peers.gather(rows, self.peers.sizes, "gathering what the images have shown")

    def _summed(self, tensor: Tensor) -> Tensor:
        """The sum over the processes of a group."""
        return tensor if self.peers is None else self.peers.total(tensor, "adding up")


def _scaled(own: Tensor, every: Tensor, usable: Tensor) -> Tensor:
    """Values between 0, the smallest of all usable ones, and 1, the largest; 0 if these are equal."""
    low = torch.where(usable, every, math.inf).amin() if len(every) else every.sum()
    high = torch.where(usable, every, -math.inf).amax() if len(every) else every.sum()
    return torch.where(high > low, (own - low) / torch.where(high > low, high - low, 1), 0)
