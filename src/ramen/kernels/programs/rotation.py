"""The program behind ``ramen.kernels.rotation``; strides are in elements."""

import triton
import triton.language as tl


@triton.jit
def turn(
    parts_pointer,
    image_stride,
    token_stride,
    head_stride,
    cos_pointer,
    sin_pointer,
    tokens,
    pairs,
    width,
    NEIGHBOURS: tl.constexpr,
    BACK: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """All pairs of some tokens of one image, over all heads, in place."""
    image = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    pair = tl.arange(0, COLUMNS)
    inside = (token < tokens)[:, None] & (pair < pairs)[None, :]
    half = width // 2
    head, own = pair // half, pair % half
    if NEIGHBOURS:
        first, second = 2 * own, 2 * own + 1
    else:
        first, second = own, own + half
    place = parts_pointer + image * image_stride + token[:, None] * token_stride + head[None, :] * head_stride
    angle = token[:, None] * width
    x = tl.load(place + first[None, :], mask=inside, other=0.0).to(tl.float32)
    y = tl.load(place + second[None, :], mask=inside, other=0.0).to(tl.float32)
    first_cos = tl.load(cos_pointer + angle + first[None, :], mask=inside, other=0.0)
    second_cos = tl.load(cos_pointer + angle + second[None, :], mask=inside, other=0.0)
    first_sin = tl.load(sin_pointer + angle + first[None, :], mask=inside, other=0.0)
    second_sin = tl.load(sin_pointer + angle + second[None, :], mask=inside, other=0.0)
    if BACK:
        turned_x = x * first_cos + y * second_sin
        turned_y = y * second_cos - x * first_sin
    else:
        turned_x = x * first_cos - y * first_sin
        turned_y = y * second_cos + x * second_sin
    kind = parts_pointer.dtype.element_ty
    tl.store(place + first[None, :], turned_x.to(kind), mask=inside)
    tl.store(place + second[None, :], turned_y.to(kind), mask=inside)
