"""The programs behind ``ramen.kernels.expert_choice``."""

import triton
import triton.language as tl


@triton.jit
def choose(
    means_pointer,
    offsets_pointer,
    weight_pointer,
    bias_pointer,
    added_pointer,
    probabilities_pointer,
    chosen_pointer,
    experts,
    size,
    inputs,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One image: its probabilities, the likeliest expert and its offsets."""
    image = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    known = expert < experts
    products = tl.zeros((EXPERTS, BLOCK), dtype=tl.float32)
    for start in range(0, inputs, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mean = tl.load(means_pointer + image * inputs + column, mask=column < inputs, other=0.0)
        place = expert[:, None] * inputs + column[None, :]
        inside = known[:, None] & (column < inputs)[None, :]
        products += tl.load(weight_pointer + place, mask=inside, other=0.0) * mean[None, :]
    logits = tl.sum(products, 1) + tl.load(bias_pointer + expert, mask=known, other=-float("inf"))
    shares = tl.exp(logits - tl.max(logits, 0))
    probabilities = shares / tl.sum(shares, 0)
    tl.store(probabilities_pointer + image * experts + expert, probabilities, mask=known)
    chosen = tl.argmax(tl.where(probabilities >= 0.0, probabilities, -1.0), 0)  # the first, if none is finite
    tl.store(chosen_pointer + image, chosen.to(tl.int64))
    zero_or_nan = tl.sum(probabilities, 0) * 0.0  # what is not finite stays so
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        offset = tl.load(offsets_pointer + chosen * size + column, mask=column < size, other=0.0)
        tl.store(added_pointer + image * size + column, offset + zero_or_nan, mask=column < size)


@triton.jit
def choose_backward(
    of_added_pointer,
    of_probabilities_pointer,
    added_pointer,
    probabilities_pointer,
    chosen_pointer,
    weight_pointer,
    of_logits_pointer,
    is_chosen_pointer,
    of_means_pointer,
    experts,
    size,
    inputs,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One image: the gradients of its logits and of its means."""
    image = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    known = expert < experts
    products = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        of_added = tl.load(of_added_pointer + image * size + column, mask=column < size, other=0.0)
        products += of_added * tl.load(added_pointer + image * size + column, mask=column < size, other=0.0)
    own = image * experts + expert
    p = tl.load(probabilities_pointer + own, mask=known, other=0.0)
    is_chosen = tl.where(expert == tl.load(chosen_pointer + image), 1.0, 0.0)
    of_p = tl.load(of_probabilities_pointer + own, mask=known, other=0.0)
    of_p += is_chosen * (tl.sum(products, 0) / tl.sum(is_chosen * p, 0))
    of_logits = p * (of_p - tl.sum(of_p * p, 0))
    tl.store(of_logits_pointer + own, of_logits, mask=known)
    tl.store(is_chosen_pointer + own, is_chosen, mask=known)
    for start in range(0, inputs, BLOCK):
        column = start + tl.arange(0, BLOCK)
        place = expert[:, None] * inputs + column[None, :]
        inside = known[:, None] & (column < inputs)[None, :]
        weight = tl.load(weight_pointer + place, mask=inside, other=0.0)
        of_means = tl.sum(weight * of_logits[:, None], 0)
        tl.store(of_means_pointer + image * inputs + column, of_means, mask=column < inputs)
