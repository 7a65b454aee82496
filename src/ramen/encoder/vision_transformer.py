"""open_clip's vision transformer written out: forward, and backward to the norm parameters alone.

The same numbers as the module's own forward pass and autograd, from the module's own weights, with less work:
- no gradient of a weight is formed, so nothing is kept for one;
- every norm is one kernel with the addition before it, and its backward pass writes each image's gradient of
  weight and bias into that image's row of one table (``ramen.kernels.norm``);
- queries, keys and values are one product, attention is one kernel (``ramen.kernels.attention``);
- where the tower pools the class token, the last block computes that token alone beyond keys and values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ramen.encoder.norm_layers import LayerNorm, Norm
from ramen.kernels import activation, attention, norm
from ramen.kernels.attention import Attended
from ramen.kernels.norm import Normalised, Place
from ramen.utils.byte_views import as_wide_integers

_LINEAR = (nn.Linear, type(nn.MultiheadAttention(1, 1).out_proj))


class NotCoveredError(Exception):
    """A tower has a part that is not written out here; the message says which."""


@dataclass(frozen=True)
class _Block:
    first: Place
    qkv_weight: Tensor
    qkv_bias: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None
    second: Place
    fc_weight: Tensor
    fc_bias: Tensor | None
    proj_weight: Tensor
    proj_bias: Tensor | None


@dataclass
class _Kept:
    """What a block's backward pass needs of its forward pass."""

    first: Normalised
    attended: Attended
    second: Normalised
    hidden: Tensor


@dataclass
class Trace:
    """What a forward pass leaves for its backward pass, which uses it up."""

    affine: Tensor
    before: Normalised | None
    blocks: list[_Kept]
    after: Normalised


class Transformer:
    """The passes of one tower.

    Args:
        module: A ``VisionTransformer`` of open_clip whose norm layers are replaced.
        norms: The replacements, by name.
        places: Where each of them, by name, has its parameters in the flat vector.

    Raises:
        NotCoveredError: The tower has a part that is not written out here.
    """

    def __init__(self, module: nn.Module, norms: Mapping[str, Norm], places: Mapping[str, Place]) -> None:
        _require_plain_tower(module)
        tower: Any = module
        self._place = {name: place for name, place in places.items() if isinstance(norms[name], LayerNorm)}
        self.patch: tuple[int, int] = tuple(tower.conv1.kernel_size)
        self.patch_weight = _padded(tower.conv1.weight.flatten(1))
        # the class token is a token of zeros with a position of its own
        positions = tower.positional_embedding.to(self.patch_weight.dtype, copy=True)
        positions[0] += tower.class_embedding.to(positions.dtype)
        self.positions = positions
        self.before = self._required("ln_pre") if not isinstance(tower.ln_pre, nn.Identity) else None
        self.after = self._required("ln_post")
        self.blocks = [
            self._block(f"transformer.resblocks.{i}", b) for i, b in enumerate(tower.transformer.resblocks)
        ]
        first = tower.transformer.resblocks[0]
        self.heads: int = first.attn.num_heads
        self.activation = _activation_kind(first.mlp.gelu)
        self.pools_class_token = tower.pool_type == "tok"
        self.pools_first: bool = tower.final_ln_after_pool
        self.proj: Tensor | None = tower.proj
        self.shifts = self._shifts()
        if len(places) != 2 * len(self.blocks) + 1 + (self.before is not None):
            raise NotCoveredError("it has norm layers beside those of a plain transformer")

    def _required(self, name: str) -> Place:
        if name not in self._place:
            raise NotCoveredError(f"its norm layer {name} is no layer norm with parameters")
        return self._place[name]

    def _block(self, name: str, block: Any) -> _Block:
        if type(block).__name__ != "ResidualAttentionBlock" or hasattr(block, "ln_1_kv"):
            raise NotCoveredError(f"its block {name} is a {type(block).__name__}")
        heads = block.attn
        for part in (heads.out_proj, block.mlp.c_fc, block.mlp.c_proj):
            if type(part) not in _LINEAR:
                raise NotCoveredError(f"its block {name} has a {type(part).__name__}, not a plain product")
        if (
            type(heads) is not nn.MultiheadAttention
            or heads.in_proj_weight is None
            or heads.bias_k is not None
            or heads.add_zero_attn
        ):
            raise NotCoveredError(f"its block {name} has an attention of its own kind")
        # a learned scale behind a product is a scale of the product's weights
        out_weight, out_bias = _scaled(heads.out_proj, block.ls_1)
        proj_weight, proj_bias = _scaled(block.mlp.c_proj, block.ls_2)
        return _Block(
            first=self._required(f"{name}.ln_1"),
            qkv_weight=heads.in_proj_weight,
            qkv_bias=heads.in_proj_bias,
            out_weight=out_weight,
            out_bias=out_bias,
            second=self._required(f"{name}.ln_2"),
            fc_weight=block.mlp.c_fc.weight,
            fc_bias=block.mlp.c_fc.bias,
            proj_weight=proj_weight,
            proj_bias=proj_bias,
        )

    def _shifts(self) -> list[Tensor | None]:
        """What the biases of all products so far add to the stream: at each block's two norms, at the end."""
        shifts: list[Tensor | None] = [None]
        for block in self.blocks:
            shifts.append(_sum(shifts[-1], block.out_bias))
            shifts.append(_sum(shifts[-1], block.proj_bias))
        return shifts

    # -- forward ------------------------------------------------------------------------------------

    def forward(self, tokens: Tensor, affine: Tensor, *, keep: bool) -> tuple[Tensor, Trace | None]:
        """Features ``(B, d)`` of what ``tokens`` gave; with ``keep`` also what ``backward`` needs."""
        x = tokens
        before = None
        if self.before is None:
            x = x + self.positions
        else:
            before = norm.forward(x, self.positions, affine, self.before)
            x = before.output
        kept: list[_Kept] = []
        delta: Tensor | None = None
        for number, block in enumerate(self.blocks):
            last = self.pools_class_token and number == len(self.blocks) - 1
            if keep:
                x, delta, trace = self._block_forward(block, x, delta, affine, class_token_only=last)
                kept.append(trace)
            else:
                shifts = self.shifts[2 * number : 2 * number + 2]
                x = self._block_in_place(block, x, shifts, affine, class_token_only=last)
        features, after = self._pool(x, delta, affine, None if keep else self.shifts[-1])
        return features, Trace(affine, before, kept, after) if keep else None

    def are_tokens(self, images: Tensor) -> bool:
        """Whether ``images`` is what ``tokens`` made of some."""
        return images.ndim == 3 and images.shape[1:] == self.positions.shape

    def tokens(self, images: Tensor) -> Tensor:
        """The class token and the patches, without their positions, ``(B, T, D)``."""
        if images.ndim != 4:
            raise ValueError(f"images must be of shape (B, 3, H, W), got {tuple(images.shape)}")
        batch, channels, height, width = images.shape
        down, across = self.patch
        rows, columns = height // down, width // across
        tokens = images.new_empty(batch, 1 + rows * columns, self.patch_weight.shape[1])
        tokens[:, 0] = 0
        tokens[:, 1:, channels * down * across :] = 0
        # pixels that stay side by side are moved as one number
        pixels, patches = as_wide_integers(images.detach().contiguous(), tokens, run=across)
        across = across * tokens.element_size() // patches.element_size()
        pixels = pixels[:, :, : rows * down, : columns * across].unflatten(2, (rows, down))
        pixels = pixels.unflatten(4, (columns, across)).permute(0, 2, 4, 1, 3, 5)
        patches = patches[:, 1:, : channels * down * across]
        patches.unflatten(1, (rows, columns)).unflatten(3, (channels, down, across)).copy_(pixels)
        return tokens @ self.patch_weight.T

    def _block_forward(
        self, block: _Block, x: Tensor, delta: Tensor | None, affine: Tensor, class_token_only: bool
    ) -> tuple[Tensor, Tensor, _Kept]:
        """The stream ``x + delta`` before the block; likewise, with what is kept, behind it."""
        first = norm.forward(x, delta, affine, block.first)
        inputs = self._attention_inputs(block, first.output, class_token_only)
        stream = first.total[:, :1] if class_token_only else first.total
        attended = attention.forward(inputs, self.heads, keep=True)
        delta = F.linear(attended.output.detach(), block.out_weight, block.out_bias)
        second = norm.forward(stream, delta, affine, block.second)
        hidden = F.linear(second.output, block.fc_weight, block.fc_bias)
        delta = F.linear(activation.forward(hidden, self.activation), block.proj_weight, block.proj_bias)
        return second.total, delta, _Kept(first, attended, second, hidden)

    def _block_in_place(
        self,
        block: _Block,
        x: Tensor,
        shifts: Sequence[Tensor | None],
        affine: Tensor,
        class_token_only: bool,
    ) -> Tensor:
        """The same where nothing is kept: products add to the stream, and biases stay apart from it."""
        first = norm.forward(x, None, affine, block.first, shifts[0]).output
        inputs = self._attention_inputs(block, first, class_token_only)
        x = x[:, :1] if class_token_only else x
        attended = attention.forward(inputs, self.heads, keep=False).output
        _add_product(x, attended, block.out_weight)
        second = norm.forward(x, None, affine, block.second, shifts[1]).output
        hidden = activation.forward(F.linear(second, block.fc_weight, block.fc_bias), self.activation)
        _add_product(x, hidden, block.proj_weight)
        return x

    def _attention_inputs(self, block: _Block, x: Tensor, class_token_only: bool) -> tuple[Tensor, ...]:
        """Queries, keys and values in one tensor; or the class token's queries, and all keys and values."""
        weight, bias, width = block.qkv_weight, block.qkv_bias, x.shape[-1]
        if not class_token_only:
            return (F.linear(x, weight, bias),)
        query_bias, other_bias = (None, None) if bias is None else (bias[:width], bias[width:])
        return F.linear(x[:, :1], weight[:width], query_bias), F.linear(x, weight[width:], other_bias)

    def _pool(
        self, x: Tensor, delta: Tensor | None, affine: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Normalised]:
        if self.pools_class_token:
            after = norm.forward(x, delta, affine, self.after, shift)
            pooled = after.output[:, 0]
        elif self.pools_first:
            total = x if delta is None else x + delta
            after = norm.forward(total[:, 1:].mean(1, keepdim=True), None, affine, self.after, shift)
            pooled = after.output[:, 0]
        else:
            after = norm.forward(x, delta, affine, self.after, shift)
            pooled = after.output[:, 1:].mean(1)
        return (pooled if self.proj is None else pooled @ self.proj), after

    # -- backward -----------------------------------------------------------------------------------

    def backward(self, gradient: Tensor, trace: Trace) -> Tensor:
        """Each image's gradient of the norm parameters ``(B, G)``, given that of its features ``(B, d)``."""
        affine = trace.affine
        rows = norm.new_rows(affine, len(gradient))
        tokens = trace.blocks[0].first.total.shape[1]
        stream = self._pool_backward(gradient, trace, tokens, rows)
        for block in reversed(self.blocks):
            stream = self._block_backward(block, trace.blocks.pop(), stream, affine, rows)
        if trace.before is not None and self.before is not None:
            norm.backward(stream, trace.before, affine, self.before, None, rows)
        return rows.sum(1)

    def _pool_backward(self, gradient: Tensor, trace: Trace, tokens: int, rows: Tensor) -> Tensor:
        """The gradient of what the last block returns: all tokens, or the class token where it pools that."""
        pooled = (gradient if self.proj is None else gradient @ self.proj.T)[:, None]
        affine, after = trace.affine, trace.after
        if self.pools_class_token:
            return norm.backward(pooled, after, affine, self.after, None, rows)
        if self.pools_first:
            pooled = norm.backward(pooled, after, affine, self.after, None, rows)
        spread = F.pad((pooled / (tokens - 1)).expand(-1, tokens - 1, -1), (0, 0, 1, 0))
        return spread if self.pools_first else norm.backward(spread, after, affine, self.after, None, rows)

    def _block_backward(
        self, block: _Block, kept: _Kept, stream: Tensor, affine: Tensor, rows: Tensor
    ) -> Tensor:
        hidden = activation.backward(stream @ block.proj_weight, kept.hidden, self.activation)
        stream = norm.backward(hidden @ block.fc_weight, kept.second, affine, block.second, stream, rows)
        gradients = attention.backward(stream @ block.out_weight, kept.attended, self.heads)
        width = stream.shape[-1]
        if len(gradients) == 1:
            normalised = gradients[0] @ block.qkv_weight
        else:  # the class token alone asked
            normalised = gradients[1] @ block.qkv_weight[width:]
            normalised[:, :1] += gradients[0] @ block.qkv_weight[:width]
            stream = F.pad(stream, (0, 0, 0, normalised.shape[1] - 1))
        return norm.backward(normalised, kept.first, affine, block.first, stream, rows)


class TransformerPasses(torch.autograd.Function):
    """A ``Transformer`` as one differentiable function of the norm parameters."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, affine: Tensor, transformer: Transformer) -> Tensor:
        """The features."""
        features, ctx.trace = transformer.forward(tokens, affine, keep=True)
        ctx.transformer = transformer
        return features

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        """The gradient of the parameters: a row an image, or their sum where all share one vector."""
        if ctx.trace is None:
            raise RuntimeError("a second backward pass through the same forward pass is not possible")
        trace, ctx.trace = ctx.trace, None
        rows = ctx.transformer.backward(gradient.contiguous(), trace)
        return None, rows if trace.affine.ndim == 2 else rows.sum(0), None


def _require_plain_tower(module: nn.Module) -> None:
    if type(module).__name__ != "VisionTransformer" or not type(module).__module__.startswith("open_clip"):
        raise NotCoveredError(f"it is a {type(module).__name__}, not open_clip's VisionTransformer")
    tower: Any = module
    if tower.attn_pool is not None or tower.pool_type not in ("tok", "avg"):
        raise NotCoveredError("it pools by attention")
    if type(tower.conv1) is not nn.Conv2d or tower.conv1.bias is not None:
        raise NotCoveredError("it does not embed its patches by a plain convolution")
    if tower.conv1.stride != tower.conv1.kernel_size:
        raise NotCoveredError("its patches overlap or lie apart")
    for name, part in module.named_modules():
        # what somebody has hung on a part would not be called
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) or is_parametrized(part):
            raise NotCoveredError(
                f"its part {name!r} carries hooks, a parametrization or a forward of its own"
            )


def _activation_kind(layer: nn.Module) -> str:
    if isinstance(layer, nn.GELU):
        return "gelu_tanh" if layer.approximate == "tanh" else "gelu"
    if type(layer).__name__ == "QuickGELU":
        return "quick_gelu"
    raise NotCoveredError(f"its activation is {type(layer).__name__}")


def _scaled(linear: nn.Linear, scale: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a product followed by a learned scale of each channel, or by nothing."""
    if isinstance(scale, nn.Identity):
        return linear.weight, linear.bias
    gamma = getattr(scale, "gamma", None)
    if type(scale).__name__ != "LayerScale" or not isinstance(gamma, Tensor):
        raise NotCoveredError(f"a block ends in a {type(scale).__name__}")
    wide = torch.promote_types(linear.weight.dtype, torch.float32)
    weight = (linear.weight.to(wide) * gamma.to(wide)[:, None]).to(linear.weight.dtype)
    bias = None if linear.bias is None else (linear.bias.to(wide) * gamma.to(wide)).to(linear.bias.dtype)
    return weight, bias


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other.to(torch.promote_types(other.dtype, torch.float32))
    return one + other


def _add_product(x: Tensor, inputs: Tensor, weight: Tensor) -> None:
    """``x += inputs @ weight.T`` in one pass over ``x``, all tokens of which lie side by side, or one."""
    rows = x[:, 0] if x.shape[1] == 1 else x.view(-1, x.shape[2])
    rows.addmm_(inputs.flatten(0, 1), weight.T)


def _padded(weight: Tensor) -> Tensor:
    """``weight`` with columns of zeros up to a multiple of eight, which fast products want."""
    return F.pad(weight, (0, -weight.shape[1] % 8))
