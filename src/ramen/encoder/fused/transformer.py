"""The fused passes of a vision transformer: forward, and backward to the norm parameters alone.

The same numbers as the module's own forward pass and autograd, from the module's own weights, with less work:
- no gradient of a weight is computed, so nothing is saved for one;
- every norm is one kernel with the addition before it, and its backward pass writes each image's gradient of
  weight and bias into that image's row of one table (``ramen.kernels.norm``);
- queries, keys and values are one product, attention is one kernel (``ramen.kernels.attention``);
- if the features need the class token alone, the last block computes keys and values for all tokens, and
  everything else for that token.

What they compute with is a ``FusedTower``; towers differ in their description, not in their passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.fused.tower import FusedAttention, FusedBlock, FusedMlp, FusedTower
from ramen.kernels import activation, attention, norm
from ramen.kernels.attention import AttentionResult
from ramen.kernels.norm import AffinePlace, NormResult


@dataclass
class _SavedAttention:
    norm: NormResult
    query_norm: NormResult | None
    key_norm: NormResult | None
    attention: AttentionResult
    inner_norm: NormResult | None


@dataclass
class _SavedMlp:
    norm: NormResult
    hidden: Tensor
    inner_norm: NormResult | None


@dataclass
class SavedForward:
    """What a forward pass saves for its backward pass, which uses it up."""

    affine: Tensor
    norm_before: NormResult | None
    blocks: list[tuple[_SavedAttention, _SavedMlp]]
    head: Any


class FusedTransformer:
    def __init__(self, tower: FusedTower) -> None:
        self.tower = tower

    # -- from images to tokens ------------------------------------------------------------------------

    def is_prepared(self, images: Tensor) -> bool:
        return images.ndim == 3 and images.shape[1:] == self.tower.positions.shape

    def prepare(self, images: Tensor) -> Tensor:
        if images.ndim != 4:
            raise ValueError(f"images must be of shape (B, 3, H, W), got {tuple(images.shape)}")
        batch, channels, height, width = images.shape
        down, across = self.tower.patch
        rows, columns = height // down, width // across
        weight, prefix = self.tower.patch_weight, self.tower.prefix
        tokens = images.new_empty(batch, prefix + rows * columns, weight.shape[1])
        tokens[:, :prefix] = 0
        tokens[:, prefix:, channels * down * across :] = 0
        pixels, patches = images.detach().contiguous(), tokens
        if images.device.type == "cuda":  # pixels that stay neighbours are moved together
            pixels, patches = _as_wide_integers(pixels, patches, across)
        across = across * tokens.element_size() // patches.element_size()
        pixels = pixels[:, :, : rows * down, : columns * across].unflatten(2, (rows, down))
        pixels = pixels.unflatten(4, (columns, across)).permute(0, 2, 4, 1, 3, 5)
        patches = patches[:, prefix:, : channels * down * across]
        patches.unflatten(1, (rows, columns)).unflatten(3, (channels, down, across)).copy_(pixels)
        return tokens @ weight.T

    # -- forward ------------------------------------------------------------------------------------

    def forward(self, prepared: Tensor, affine: Tensor, *, keep: bool) -> tuple[Tensor, SavedForward | None]:
        tower, x = self.tower, prepared
        before = None
        if tower.norm_before is None:
            x = x + tower.positions
        else:
            before = norm.forward(x, tower.positions, affine, tower.norm_before)
            x = before.output
        saved: list[tuple[_SavedAttention, _SavedMlp]] = []
        delta: Tensor | None = None
        for number, block in enumerate(tower.blocks):
            first_only = tower.first_token_only and number == len(tower.blocks) - 1
            if keep:
                x, delta, saved_block = self._block(block, x, delta, affine, first_only)
                saved.append(saved_block)
            else:
                bias_sums = tower.bias_sums[2 * number : 2 * number + 2]
                x = self._block_in_place(block, x, bias_sums, affine, first_only)
        shift = None if keep else tower.bias_sums[-1]
        features, head = tower.head.forward(x, delta, affine, shift, keep=keep)
        return features, SavedForward(affine, before, saved, head) if keep else None

    def _block(
        self, block: FusedBlock, x: Tensor, delta: Tensor | None, affine: Tensor, first_only: bool
    ) -> tuple[Tensor, Tensor, tuple[_SavedAttention, _SavedMlp]]:
        """From the residual stream ``x + delta`` before the block to both parts of it after the block."""
        attention_part, mlp = block.attention, block.mlp
        first = norm.forward(x, delta, affine, attention_part.norm)
        attended, saved_attention = self.attend(attention_part, first, affine, first_only, keep=True)
        stream = first.total[:, :1] if first_only else first.total
        delta = F.linear(attended, attention_part.out_weight, attention_part.out_bias)
        second = norm.forward(stream, delta, affine, mlp.norm)
        activated, saved_mlp = self.activate(mlp, second, affine)
        delta = F.linear(activated, mlp.proj_weight, mlp.proj_bias)
        return second.total, delta, (saved_attention, saved_mlp)

    def _block_in_place(
        self,
        block: FusedBlock,
        x: Tensor,
        bias_sums: Sequence[Tensor | None],
        affine: Tensor,
        first_only: bool,
    ) -> Tensor:
        """The same if nothing is saved: products are added to ``x`` in place, biases only in the norms."""
        first = norm.forward(x, None, affine, block.attention.norm, bias_sums[0])
        attended, _ = self.attend(block.attention, first, affine, first_only, keep=False)
        del first
        x = x[:, :1] if first_only else x
        _add_product(x, attended, block.attention.out_weight)
        second = norm.forward(x, None, affine, block.mlp.norm, bias_sums[1])
        activated, _ = self.activate(block.mlp, second, affine)
        _add_product(x, activated, block.mlp.proj_weight)
        return x

    def attend(
        self, part: FusedAttention, normalised: NormResult, affine: Tensor, first_only: bool, *, keep: bool
    ) -> tuple[Tensor, _SavedAttention]:
        """What the last product of an attention takes; queries of the first token alone if it is enough."""
        heads, rotation = self.tower.heads, self.tower.rotation
        inputs = _attention_inputs(part, normalised.output, first_only)
        queries, keys = _queries_and_keys(inputs, heads)
        query_norm = _normalise_heads(queries, affine, part.query_norm)
        key_norm = _normalise_heads(keys, affine, part.key_norm)
        if rotation is not None:
            rotation.turn(keys)
            if not first_only:
                rotation.turn(queries)
        attended = attention.forward(inputs, heads, keep=keep)
        output, inner = attended.output.detach(), None
        if part.inner_norm is not None:
            inner = norm.forward(output, None, affine, part.inner_norm)
            output = inner.output
        return output, _SavedAttention(normalised, query_norm, key_norm, attended, inner)

    @staticmethod
    def activate(part: FusedMlp, normalised: NormResult, affine: Tensor) -> tuple[Tensor, _SavedMlp]:
        """What the second product of an MLP takes."""
        hidden = F.linear(normalised.output, part.fc_weight, part.fc_bias)
        output, inner = activation.forward(hidden, part.activation), None
        if part.inner_norm is not None:
            inner = norm.forward(output, None, affine, part.inner_norm)
            output = inner.output
        return output, _SavedMlp(normalised, hidden, inner)

    # -- backward -----------------------------------------------------------------------------------

    def backward(self, gradient: Tensor, saved: SavedForward) -> Tensor:
        affine = saved.affine
        rows = norm.new_gradient_rows(affine, len(gradient))
        stream = self.tower.head.backward(gradient, saved.head, rows)
        saved.head = None
        for block in reversed(self.tower.blocks):
            saved_attention, saved_mlp = saved.blocks.pop()
            stream = self.mlp_backward(block.mlp, saved_mlp, stream, affine, rows)
            stream = self.attention_backward(block.attention, saved_attention, stream, affine, rows)
        if saved.norm_before is not None and self.tower.norm_before is not None:
            norm.backward(stream, saved.norm_before, affine, self.tower.norm_before, None, rows)
        return rows.sum(1)

    @staticmethod
    def mlp_backward(
        part: FusedMlp, saved: _SavedMlp, stream: Tensor, affine: Tensor, rows: Tensor
    ) -> Tensor:
        activated = stream @ part.proj_weight
        if saved.inner_norm is not None and part.inner_norm is not None:
            activated = norm.backward(activated, saved.inner_norm, affine, part.inner_norm, None, rows)
        hidden = activation.backward(activated, saved.hidden, part.activation)
        return norm.backward(hidden @ part.fc_weight, saved.norm, affine, part.norm, stream, rows)

    def attention_backward(
        self, part: FusedAttention, saved: _SavedAttention, stream: Tensor, affine: Tensor, rows: Tensor
    ) -> Tensor:
        heads, rotation = self.tower.heads, self.tower.rotation
        attended = stream @ part.out_weight
        if saved.inner_norm is not None and part.inner_norm is not None:
            attended = norm.backward(attended, saved.inner_norm, affine, part.inner_norm, None, rows)
        gradients = attention.backward(attended, saved.attention, heads)
        first_only = len(gradients) == 2
        queries, keys = _queries_and_keys(gradients, heads)
        if rotation is not None:
            rotation.turn(keys, back=True)
            if not first_only:
                rotation.turn(queries, back=True)
        _normalise_heads_backward(queries, saved.query_norm, affine, part.query_norm, rows)
        _normalise_heads_backward(keys, saved.key_norm, affine, part.key_norm, rows)
        if not first_only:
            normalised = gradients[0] @ part.qkv_weight
        else:
            width = stream.shape[-1]
            normalised = gradients[1] @ part.qkv_weight[width:]
            normalised[:, :1] += gradients[0] @ part.qkv_weight[:width]
            stream = F.pad(stream, (0, 0, 0, normalised.shape[1] - 1))
        return norm.backward(normalised, saved.norm, affine, part.norm, stream, rows)


def _as_wide_integers(pixels: Tensor, patches: Tensor, run: int) -> list[Tensor]:
    """The same bytes as the widest integers that divide ``run`` numbers, and at which every row begins."""
    tensors = pixels, patches
    lengths = [n for t in tensors for n in (t.shape[-1], t.storage_offset(), *t.stride()[:-1])]
    sizes = [n * pixels.element_size() for n in (run, *lengths)]
    integers = (torch.int64, torch.int32, torch.int16, torch.int8)
    widest = next(dtype for dtype in integers if all(size % dtype.itemsize == 0 for size in sizes))
    return [tensor.view(widest) for tensor in tensors]


def _attention_inputs(part: FusedAttention, x: Tensor, first_only: bool) -> tuple[Tensor, ...]:
    """Queries, keys and values in one tensor; or the first token's query, and all keys and values."""
    weight, bias, width = part.qkv_weight, part.qkv_bias, x.shape[-1]
    if not first_only:
        return (F.linear(x, weight, bias),)
    query_bias, other_bias = (None, None) if bias is None else (bias[:width], bias[width:])
    return F.linear(x[:, :1], weight[:width], query_bias), F.linear(x, weight[width:], other_bias)


def _queries_and_keys(inputs: tuple[Tensor, ...], heads: int) -> tuple[Tensor, Tensor]:
    """Views ``(B, T, heads, head width)`` of what an attention takes, or of its gradients."""
    if len(inputs) == 2:
        query, others = inputs
        return query.unflatten(-1, (heads, -1)), others.unflatten(-1, (2, heads, -1))[:, :, 0]
    parts = inputs[0].unflatten(-1, (3, heads, -1))
    return parts[:, :, 0], parts[:, :, 1]


def _normalise_heads(part: Tensor, affine: Tensor, place: AffinePlace | None) -> NormResult | None:
    """Replace queries or keys by their norms, head by head."""
    if place is None:
        return None
    given = part.clone(memory_format=torch.contiguous_format)  # part is overwritten, and this is saved
    result = norm.forward(given.flatten(1, 2), None, affine, place)
    part.copy_(result.output.view(part.shape))
    return result


def _normalise_heads_backward(
    gradient: Tensor, saved: NormResult | None, affine: Tensor, place: AffinePlace | None, rows: Tensor
) -> None:
    """Replace the gradient of what ``_normalise_heads`` has made by that of what it was given."""
    if saved is not None and place is not None:
        flat = gradient.flatten(1, 2).contiguous()
        gradient.copy_(norm.backward(flat, saved, affine, place, None, rows).view(gradient.shape))


def _add_product(x: Tensor, inputs: Tensor, weight: Tensor) -> None:
    """``x += inputs @ weight.T`` in one pass over ``x``, which has one token or is contiguous."""
    rows = x[:, 0] if x.shape[1] == 1 else x.view(-1, x.shape[2])
    rows.addmm_(inputs.flatten(0, 1), weight.T)
