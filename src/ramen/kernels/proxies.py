"""Images of a stream, one after the other, and a class prior and class proxies that learn from each.

Each image needs what the one before has left, and in plain torch it costs what its 16 small kernels cost to
start. The program follows many images by itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ramen import kernels

_PIECE = 32  # images that plain torch follows at a time
_TILE = 16_384  # logits of images by proxies that the program has room for
_MOST_CLASSES = 8192
_SHORTEST = 1e-6  # length of a proxy after a step, before it is made 1 again


@dataclass(frozen=True)
class Followed:
    """What images have found and left behind.

    Attributes:
        log_text: Log probabilities of the text with the prior, ``(B, C)``.
        log_proxies: Those of the proxies, ``(B, C)``.
        steps: How far each image moved each proxy against itself, ``(B, C)``.
        shrinking: What made the proxy's length 1 after it, ``(B, C)``.
        prior: After the last image, ``(C,)``.
    """

    log_text: Tensor
    log_proxies: Tensor
    steps: Tensor
    shrinking: Tensor
    prior: Tensor


@dataclass(frozen=True)
class Start:
    """What is known of images before the first is followed.

    Attributes:
        text_logits: ``(B, C)``.
        seen: Logits of each image by the proxies as they are now, ``(B, C)``.
        similar: Logits of each image by each other, ``(B, B)``.
        prior: Of the classes, ``(C,)``; what is added to the logits.
        prior_rates: Step size of the prior for each image, ``(B,)``.
        proxy_rates: Likewise of the proxies.
    """

    text_logits: Tensor
    seen: Tensor
    similar: Tensor
    prior: Tensor
    prior_rates: Tensor
    proxy_rates: Tensor


def images_at_once(class_embeddings: Tensor) -> int:
    """How many images to follow at a time; any number gives the same answers."""
    if not _uses_triton(class_embeddings):
        return _PIECE
    return _TILE // kernels.power_of_two(len(class_embeddings))


def follow(start: Start, balance: float, sharpness: float) -> Followed:
    """Answer images with prior and proxies, which learn from each before the next.

    The proxies are followed only as far as these images see them: the cosines of ``v - step z``, made unit
    again, follow from those of v and of z.

    Args:
        start: At most ``images_at_once`` images.
        balance: The probability that a class is to have at least.
        sharpness: The logit of a cosine of 1.
    """
    if _uses_triton(start.seen.T):
        return _follow_triton(start, balance, sharpness)
    return _follow_torch(start, balance, sharpness)


def _uses_triton(class_rows: Tensor) -> bool:
    fits = len(class_rows) <= _MOST_CLASSES and class_rows.dtype == torch.float32
    return fits and kernels.usable_on(class_rows.device)


# -- plain torch ------------------------------------------------------------------------------------


def _follow_torch(start: Start, balance: float, sharpness: float) -> Followed:
    prior, seen, one = start.prior, start.seen, torch.ones_like(start.prior[:1])
    minus_half_own = start.similar.diagonal() / -2
    log_text, log_proxies, steps, shrinking = [], [], [], []
    for place in range(len(seen)):
        # 1. The text's probabilities with the prior, which rises for classes that come too rarely.
        log_text.append((start.text_logits[place] + prior).log_softmax(0))
        balanced = log_text[-1].exp()
        prior = torch.addcmul(prior, balanced - balance, start.prior_rates[place], value=-1).clamp_min(0)

        # 2. The proxies' probabilities, and a step along the gradient of their cross entropy to 1.
        own = seen[place]
        log_proxies.append(own.log_softmax(0))
        step = start.proxy_rates[place] * (log_proxies[-1].exp() - balanced)
        # the squared length after it: 1 - 2 step cosine + step^2, as embeddings have length 1
        away = torch.addcmul(own, step, minus_half_own[place])
        squared = torch.addcmul(one, step, away, value=-2 / sharpness)
        shrink = squared.clamp_min(_SHORTEST**2).rsqrt()
        seen = torch.addcmul(seen, start.similar[:, place, None], step, value=-1) * shrink
        steps.append(step)
        shrinking.append(shrink)
    return Followed(
        torch.stack(log_text), torch.stack(log_proxies), torch.stack(steps), torch.stack(shrinking), prior
    )


# -- Triton -----------------------------------------------------------------------------------------


def _follow_triton(start: Start, balance: float, sharpness: float) -> Followed:
    inputs = start.text_logits, start.seen, start.similar, start.prior, start.prior_rates, start.proxy_rates
    outputs = *(torch.empty_like(start.seen) for _ in range(4)), torch.empty_like(start.prior)
    images, classes = start.seen.shape
    tile = kernels.power_of_two(images), kernels.power_of_two(classes)
    with kernels.current_device(start.seen.device):
        kernels.load("proxies").follow[(1,)](
            *(tensor.contiguous() for tensor in inputs),
            *outputs,
            images,
            classes,
            balance,
            -2 / sharpness,
            _SHORTEST**2,
            IMAGES=tile[0],
            CLASSES=tile[1],
            num_warps=min(16, max(4, tile[0] * tile[1] // 1024)),  # what is in registers has to fit
        )
    return Followed(*outputs)
