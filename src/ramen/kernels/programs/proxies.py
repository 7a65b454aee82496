"""The program behind ``ramen.kernels.proxies``."""

import triton
import triton.language as tl


@triton.jit
def _log_softmax(logits):
    logits -= tl.max(logits, 0)
    return logits - tl.log(tl.sum(tl.exp(logits), 0))


@triton.jit
def _at_least(x, least):
    """A NaN stays one, as in torch."""
    return tl.maximum(x, least, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def follow(
    text_pointer,
    seen_pointer,
    similar_pointer,
    prior_pointer,
    prior_rates_pointer,
    proxy_rates_pointer,
    log_text_pointer,
    log_proxies_pointer,
    steps_pointer,
    shrinking_pointer,
    new_prior_pointer,
    images,
    classes,
    balance,
    minus_two_over_sharpness,
    shortest_squared,
    IMAGES: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """All images, one after the other; their logits by the proxies stay in registers."""
    row, column = tl.arange(0, IMAGES), tl.arange(0, CLASSES)
    inside = column < classes
    prior = tl.load(prior_pointer + column, mask=inside, other=0.0)
    every = row[:, None] * classes + column[None, :]
    seen = tl.load(seen_pointer + every, mask=(row < images)[:, None] & inside[None, :], other=0.0)
    for place in range(0, images):
        own_place = place * classes + column
        text = tl.load(text_pointer + own_place, mask=inside, other=-float("inf"))
        similar = tl.load(similar_pointer + row * images + place, mask=row < images, other=0.0)
        minus_half_own = tl.load(similar_pointer + place * images + place) / -2.0
        prior_rate = tl.load(prior_rates_pointer + place)
        proxy_rate = tl.load(proxy_rates_pointer + place)

        log_text = _log_softmax(text + prior)
        balanced = tl.exp(log_text)
        prior = _at_least(prior - (balanced - balance) * prior_rate, 0.0)

        own = tl.sum(tl.where(row[:, None] == place, seen, 0.0), 0)
        log_proxies = _log_softmax(tl.where(inside, own, -float("inf")))
        step = proxy_rate * (tl.exp(log_proxies) - balanced)
        squared = 1.0 + minus_two_over_sharpness * step * (own + step * minus_half_own)
        shrink = 1.0 / tl.sqrt(_at_least(squared, shortest_squared))
        seen = (seen - similar[:, None] * step[None, :]) * shrink[None, :]

        tl.store(log_text_pointer + own_place, log_text, mask=inside)
        tl.store(log_proxies_pointer + own_place, log_proxies, mask=inside)
        tl.store(steps_pointer + own_place, step, mask=inside)
        tl.store(shrinking_pointer + own_place, shrink, mask=inside)
    tl.store(new_prior_pointer + column, prior, mask=inside)
