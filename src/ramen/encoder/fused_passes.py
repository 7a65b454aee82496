"""The fused passes of a vision transformer: forward, and backward to the norm parameters alone.

The same numbers as the module's own forward pass and autograd, from the module's own weights, with less work:
- no gradient of a weight is computed, so nothing is saved for one;
- every norm is one kernel with the addition before it, and its backward pass writes each image's gradient of
  weight and bias into that image's row of one table (``ramen.kernels.norm``);
- queries, keys and values are one product, attention is one kernel (``ramen.kernels.attention``);
- if the tower pools the class token, the last block computes keys and values for all tokens, and everything
  else for that token alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.encoder.fused_tower import FusedBlock, fused_tower
from ramen.encoder.norm_layers import Norm
from ramen.kernels import activation, attention, norm
from ramen.kernels.attention import AttentionResult
from ramen.kernels.norm import AffinePlace, NormResult
from ramen.utils.byte_views import as_wide_integers


@dataclass
class _SavedBlock:
    """What a block's backward pass needs from its forward pass."""

    attention_norm: NormResult
    attention: AttentionResult
    mlp_norm: NormResult
    hidden: Tensor


@dataclass
class SavedForward:
    """What a forward pass saves for its backward pass, which uses it up."""

    affine: Tensor
    norm_before: NormResult | None
    blocks: list[_SavedBlock]
    norm_after: NormResult


class FusedTransformer:
    """The fused passes of one tower.

    Args:
        module: A ``VisionTransformer`` of open_clip whose norm layers are replaced.
        norms: The replacements, by name.
        places: Where each of them, by name, has its parameters in the flat vector.

    Raises:
        NotCoveredError: The tower has a part that the fused passes do not cover.
    """

    def __init__(
        self, module: nn.Module, norms: Mapping[str, Norm], places: Mapping[str, AffinePlace]
    ) -> None:
        self.tower = fused_tower(module, norms, places)

    # -- from images to tokens ------------------------------------------------------------------------

    def are_tokens(self, images: Tensor) -> bool:
        """Whether ``images`` is a result of ``tokens``."""
        return images.ndim == 3 and images.shape[1:] == self.tower.positions.shape

    def tokens(self, images: Tensor) -> Tensor:
        """The class token and the embedded patches, without their positions, ``(B, T, D)``."""
        if images.ndim != 4:
            raise ValueError(f"images must be of shape (B, 3, H, W), got {tuple(images.shape)}")
        batch, channels, height, width = images.shape
        down, across = self.tower.patch
        rows, columns = height // down, width // across
        weight = self.tower.patch_weight
        tokens = images.new_empty(batch, 1 + rows * columns, weight.shape[1])
        tokens[:, 0] = 0
        tokens[:, 1:, channels * down * across :] = 0
        pixels, patches = images.detach().contiguous(), tokens
        if images.device.type == "cuda":  # pixels that stay neighbours are moved together
            pixels, patches = as_wide_integers(pixels, patches, run=across)
        across = across * tokens.element_size() // patches.element_size()
        pixels = pixels[:, :, : rows * down, : columns * across].unflatten(2, (rows, down))
        pixels = pixels.unflatten(4, (columns, across)).permute(0, 2, 4, 1, 3, 5)
        patches = patches[:, 1:, : channels * down * across]
        patches.unflatten(1, (rows, columns)).unflatten(3, (channels, down, across)).copy_(pixels)
        return tokens @ weight.T

    # -- forward ------------------------------------------------------------------------------------

    def forward(self, tokens: Tensor, affine: Tensor, *, keep: bool) -> tuple[Tensor, SavedForward | None]:
        """Features ``(B, d)`` of a result of ``tokens``; with ``keep`` also what ``backward`` needs."""
        tower, x = self.tower, tokens
        before = None
        if tower.norm_before is None:
            x = x + tower.positions
        else:
            before = norm.forward(x, tower.positions, affine, tower.norm_before)
            x = before.output
        saved: list[_SavedBlock] = []
        delta: Tensor | None = None
        for number, block in enumerate(tower.blocks):
            is_last = tower.pools_class_token and number == len(tower.blocks) - 1
            if keep:
                x, delta, saved_block = self._block(block, x, delta, affine, class_token_only=is_last)
                saved.append(saved_block)
            else:
                bias_sums = tower.bias_sums[2 * number : 2 * number + 2]
                x = self._block_in_place(block, x, bias_sums, affine, class_token_only=is_last)
        features, after = self._pool(x, delta, affine, None if keep else tower.bias_sums[-1])
        return features, SavedForward(affine, before, saved, after) if keep else None

    def _block(
        self, block: FusedBlock, x: Tensor, delta: Tensor | None, affine: Tensor, class_token_only: bool
    ) -> tuple[Tensor, Tensor, _SavedBlock]:
        """From the residual stream ``x + delta`` before the block to both parts of it after the block."""
        first = norm.forward(x, delta, affine, block.attention_norm)
        inputs = _attention_inputs(block, first.output, class_token_only)
        stream = first.total[:, :1] if class_token_only else first.total
        attended = attention.forward(inputs, self.tower.heads, keep=True)
        delta = F.linear(attended.output.detach(), block.out_weight, block.out_bias)
        second = norm.forward(stream, delta, affine, block.mlp_norm)
        hidden = F.linear(second.output, block.fc_weight, block.fc_bias)
        activated = activation.forward(hidden, self.tower.activation)
        delta = F.linear(activated, block.proj_weight, block.proj_bias)
        return second.total, delta, _SavedBlock(first, attended, second, hidden)

    def _block_in_place(
        self,
        block: FusedBlock,
        x: Tensor,
        bias_sums: Sequence[Tensor | None],
        affine: Tensor,
        class_token_only: bool,
    ) -> Tensor:
        """The same if nothing is saved: products are added to ``x`` in place, biases only in the norms."""
        first = norm.forward(x, None, affine, block.attention_norm, bias_sums[0]).output
        inputs = _attention_inputs(block, first, class_token_only)
        x = x[:, :1] if class_token_only else x
        attended = attention.forward(inputs, self.tower.heads, keep=False).output
        _add_product(x, attended, block.out_weight)
        second = norm.forward(x, None, affine, block.mlp_norm, bias_sums[1]).output
        hidden = activation.forward(F.linear(second, block.fc_weight, block.fc_bias), self.tower.activation)
        _add_product(x, hidden, block.proj_weight)
        return x

    def _pool(
        self, x: Tensor, delta: Tensor | None, affine: Tensor, bias_sum: Tensor | None
    ) -> tuple[Tensor, NormResult]:
        tower = self.tower
        if tower.pools_class_token:
            after = norm.forward(x, delta, affine, tower.norm_after, bias_sum)
            pooled = after.output[:, 0]
        elif tower.norm_after_pool:
            total = x if delta is None else x + delta
            after = norm.forward(total[:, 1:].mean(1, keepdim=True), None, affine, tower.norm_after, bias_sum)
            pooled = after.output[:, 0]
        else:
            after = norm.forward(x, delta, affine, tower.norm_after, bias_sum)
            pooled = after.output[:, 1:].mean(1)
        return (pooled if tower.proj is None else pooled @ tower.proj), after

    # -- backward -----------------------------------------------------------------------------------

    def backward(self, gradient: Tensor, saved: SavedForward) -> Tensor:
        """Each image's gradient of the norm parameters ``(B, G)``, given that of its features ``(B, d)``."""
        affine = saved.affine
        rows = norm.new_gradient_rows(affine, len(gradient))
        tokens = saved.blocks[0].attention_norm.total.shape[1]
        stream = self._pool_backward(gradient, saved, tokens, rows)
        for block in reversed(self.tower.blocks):
            stream = self._block_backward(block, saved.blocks.pop(), stream, affine, rows)
        if saved.norm_before is not None and self.tower.norm_before is not None:
            norm.backward(stream, saved.norm_before, affine, self.tower.norm_before, None, rows)
        return rows.sum(1)

    def _pool_backward(self, gradient: Tensor, saved: SavedForward, tokens: int, rows: Tensor) -> Tensor:
        """The gradient of the last block's output: of the class token if that is pooled, or of all tokens."""
        tower, affine, after = self.tower, saved.affine, saved.norm_after
        pooled = (gradient if tower.proj is None else gradient @ tower.proj.T)[:, None]
        if tower.pools_class_token:
            return norm.backward(pooled, after, affine, tower.norm_after, None, rows)
        if tower.norm_after_pool:
            pooled = norm.backward(pooled, after, affine, tower.norm_after, None, rows)
        spread = F.pad((pooled / (tokens - 1)).expand(-1, tokens - 1, -1), (0, 0, 1, 0))
        if tower.norm_after_pool:
            return spread
        return norm.backward(spread, after, affine, tower.norm_after, None, rows)

    def _block_backward(
        self, block: FusedBlock, saved: _SavedBlock, stream: Tensor, affine: Tensor, rows: Tensor
    ) -> Tensor:
        hidden = activation.backward(stream @ block.proj_weight, saved.hidden, self.tower.activation)
        stream = norm.backward(hidden @ block.fc_weight, saved.mlp_norm, affine, block.mlp_norm, stream, rows)
        gradients = attention.backward(stream @ block.out_weight, saved.attention, self.tower.heads)
        width = stream.shape[-1]
        if len(gradients) == 1:
            normalised = gradients[0] @ block.qkv_weight
        else:  # only the class token had a query
            normalised = gradients[1] @ block.qkv_weight[width:]
            normalised[:, :1] += gradients[0] @ block.qkv_weight[:width]
            stream = F.pad(stream, (0, 0, 0, normalised.shape[1] - 1))
        return norm.backward(normalised, saved.attention_norm, affine, block.attention_norm, stream, rows)


class FusedPasses(torch.autograd.Function):
    """A ``FusedTransformer`` as one differentiable function of the norm parameters."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, affine: Tensor, transformer: FusedTransformer) -> Tensor:
        """The features."""
        features, ctx.saved_forward = transformer.forward(tokens, affine, keep=True)
        ctx.transformer = transformer
        return features

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        """The gradient of the parameters: one row per image, or their sum if all images share one vector."""
        if ctx.saved_forward is None:
            raise RuntimeError("a second backward pass through the same forward pass is not possible")
        saved, ctx.saved_forward = ctx.saved_forward, None
        rows = ctx.transformer.backward(gradient.contiguous(), saved)
        return None, rows if saved.affine.ndim == 2 else rows.sum(0), None


def _attention_inputs(block: FusedBlock, x: Tensor, class_token_only: bool) -> tuple[Tensor, ...]:
    """Queries, keys and values in one tensor; or the class token's query, and all keys and values."""
    weight, bias, width = block.qkv_weight, block.qkv_bias, x.shape[-1]
    if not class_token_only:
        return (F.linear(x, weight, bias),)
    query_bias, other_bias = (None, None) if bias is None else (bias[:width], bias[width:])
    return F.linear(x[:, :1], weight[:width], query_bias), F.linear(x, weight[width:], other_bias)


def _add_product(x: Tensor, inputs: Tensor, weight: Tensor) -> None:
    """``x += inputs @ weight.T`` in one pass over ``x``, which has one token or is contiguous."""
    rows = x[:, 0] if x.shape[1] == 1 else x.view(-1, x.shape[2])
    rows.addmm_(inputs.flatten(0, 1), weight.T)
