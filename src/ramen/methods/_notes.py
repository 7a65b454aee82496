"""Notes that the records of several methods share."""

OPINION_ENTROPY = (
    "loss='come' is the opinion entropy of COME (ICLR 2025, arXiv 2410.10894), to which bounds on the "
    "entropy then apply. Decided here: an image's logits less their mean, as CLIP's are far from 0, and a "
    "mass of uncertainty of C, for which COME's code has 1,000"
)
