"""Notes that the records of several methods share."""

OPINION_ENTROPY = (
    "loss='come' is the opinion entropy of COME (ICLR 2025, arXiv 2410.10894), to which bounds on the "
    "entropy then apply. Decided here: an image's logits less their mean, as CLIP's are far from 0, and a "
    "mass of uncertainty of C, for which COME's code has 1,000"
)

RANDOM_VIEWS = (
    "views are crops of the preprocessed image, with at least 8 % of its area and sides of 3:4 to 4:3, half "
    "of them mirrored; the published code crops the original file in its full resolution. The first view is "
    "the image itself. Decided here: draws depend on the seed and the image's own pixels, so that neither "
    "the batch nor the order of the stream changes an answer"
)
