"""One vector of norm parameters for a whole stream: the pretrained one, moved by the stream's mean step.

Ramen moves the norm parameters separately for each image. A snapshot keeps the mean of these steps and no
memory: it fits the stream on average, every image alike, and adapts no longer. It can be used if an adapting
method cannot.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from ramen.methods._losses import entropy
from ramen.methods._passes import Pass, give
from ramen.methods.ramen import Ramen
from ramen.utils.numerics import plain_numerics


@torch.no_grad()
@plain_numerics()
def mean_step(method: Ramen, batches: Iterable[Tensor]) -> tuple[Tensor, int]:
    """The mean of the images' own steps ``(G,)``, and how many images it is of.

    The images enter the method's memory, as if it had answered them.

    Args:
        method: Ramen, whose memory may be empty.
        batches: Preprocessed images. Those whose pixels, embeddings or gradients are not finite do not count.
    """
    classifier = method.classifier
    base = classifier.encoder.base
    total, count = torch.zeros_like(base, dtype=torch.float64), 0
    for batch in batches:
        images, usable, _ = method.receive(classifier.check_images(batch))
        seen = give(classifier, Pass(images, base, entropy, each=True))
        usable &= seen.embeddings.isfinite().all(1) & seen.gradient.isfinite().all(1)
        step = method.learning(len(images), None, partial(method.step, seen, usable))
        method.images_seen += len(images)
        total += (step.affine[usable] - base).double().sum(0)
        count += int(usable.sum())
    if not count:
        raise ValueError("batches must hold at least one image that can be used, got none")
    return (total / count).to(base.dtype), count
