"""The program behind ``ramen.kernels.assignments``."""

import triton
import triton.language as tl


@triton.jit
def assign(
    prior_pointer,
    weights_pointer,
    assigned_pointer,
    evidence_pointer,
    output_pointer,
    images,
    classes,
    OTHERS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """One image, all classes: evidence and its softmax, in the type of the tensors."""
    image = tl.program_id(0)
    other, column = tl.arange(0, OTHERS), tl.arange(0, CLASSES)
    inside = column < classes
    summed = tl.zeros((OTHERS, CLASSES), dtype=prior_pointer.dtype.element_ty)
    for start in range(0, images, OTHERS):
        row = start + other
        weight = tl.load(weights_pointer + image * images + row, mask=row < images, other=0.0)
        place = row[:, None] * classes + column[None, :]
        theirs = (row < images)[:, None] & inside[None, :]
        summed += weight[:, None] * tl.load(assigned_pointer + place, mask=theirs, other=0.0)
    own = image * classes + column
    evidence = tl.load(prior_pointer + own, mask=inside, other=-float("inf")) + tl.sum(summed, 0)
    tl.store(evidence_pointer + own, evidence, mask=inside)
    shares = tl.exp(evidence - tl.max(evidence, 0))
    tl.store(output_pointer + own, shares / tl.sum(shares, 0), mask=inside)
