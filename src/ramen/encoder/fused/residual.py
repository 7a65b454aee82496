"""The fused passes of a residual network with batch norm: forward, and backward to the norm parameters alone.

The same numbers as the module's own forward pass and autograd, from the module's own weights, with less work:
- the channels of a pixel are beside each other in memory, and a convolution of single pixels is one product;
- a norm, the addition of a block's input and the activation are one kernel, whose backward pass writes each
  image's gradient of weight and bias into that image's row of one table (``ramen.kernels.channel_norm``);
- no gradient of a weight or of the images is computed, and of a convolution only its output is saved.

What they compute with is a ``FusedNetwork``; ``ramen.encoder.fused.read_residual`` makes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.fused.tower import Head
from ramen.kernels import channel_norm, mean_pool
from ramen.kernels.channel_norm import ChannelNorm
from ramen.kernels.norm import new_gradient_rows

Pair = tuple[int, int]


# -- the description --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convolution:
    """A convolution; its weight has the channels of a pixel beside each other."""

    weight: Tensor
    bias: Tensor | None
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def is_product(self) -> bool:
        """Whether it treats every pixel by itself."""
        single = self.weight.shape[2:] == (1, 1) and self.padding == (0, 0)
        return single and self.stride == (1, 1) and self.groups == 1

    def forward(self, x: Tensor) -> Tensor:
        if self.is_product:
            return F.linear(x.permute(0, 2, 3, 1), self.weight[:, :, 0, 0], self.bias).permute(0, 3, 1, 2)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def backward(self, gradient: Tensor, shape: torch.Size) -> Tensor:
        if self.is_product:
            return (gradient.permute(0, 2, 3, 1) @ self.weight[:, :, 0, 0]).permute(0, 3, 1, 2)
        found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            gradient,
            mean_pool.empty_map(gradient, shape),  # only its shape and layout are used
            self.weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0, 0),
            self.groups,
            (True, False, False),
        )
        return found[0]


@dataclass(frozen=True)
class NormedConvolution:
    convolution: Convolution
    norm: ChannelNorm
    relu: bool


@dataclass(frozen=True)
class Pool:
    """The mean or the largest of neighbouring pixels."""

    kernel: Pair
    stride: Pair
    padding: Pair
    ceil_mode: bool = False
    largest: bool = False
    counts_padding: bool = True  # of a mean

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.largest:
            found: tuple[Tensor, Tensor] = torch.ops.aten.max_pool2d_with_indices(
                x, self.kernel, self.stride, self.padding, (1, 1), self.ceil_mode
            )
            return found
        if self._is_tiled:
            return mean_pool.forward(x, self.kernel), None
        return torch.ops.aten.avg_pool2d(x, *self._mean_options), None

    def backward(self, gradient: Tensor, shape: torch.Size, places: Tensor | None) -> Tensor:
        if self._is_tiled:
            return mean_pool.backward(gradient, shape, self.kernel)
        given = mean_pool.empty_map(gradient, shape)
        found: Tensor
        if places is None:
            found = torch.ops.aten.avg_pool2d_backward(gradient, given, *self._mean_options)
        else:
            options = (self.kernel, self.stride, self.padding, (1, 1), self.ceil_mode)
            found = torch.ops.aten.max_pool2d_with_indices_backward(gradient, given, *options, places)
        return found

    @property
    def _is_tiled(self) -> bool:
        """Whether it takes means of windows that are side by side and all inside."""
        beside = self.kernel == self.stride and self.padding == (0, 0)
        return not self.largest and beside and not self.ceil_mode

    @property
    def _mean_options(self) -> tuple[Pair, Pair, Pair, bool, bool, None]:
        return self.kernel, self.stride, self.padding, self.ceil_mode, self.counts_padding, None


Step = NormedConvolution | Pool


@dataclass(frozen=True)
class ResidualBlock:
    """``ReLU(main(x) + shortcut(x))``; ``main`` ends with a norm, a ``shortcut`` without steps is ``x``."""

    main: Sequence[Step]
    shortcut: Sequence[Step]

    @property
    def last(self) -> NormedConvolution:
        """The step whose norm is fused with the addition."""
        step = self.main[-1]
        assert isinstance(step, NormedConvolution)
        return step


@dataclass(frozen=True)
class FusedNetwork:
    """The weights and settings of a network that is covered; ``stem`` begins with a convolution."""

    stem: Sequence[Step]
    blocks: Sequence[ResidualBlock]
    head: Head

    @property
    def first(self) -> Convolution:
        step = self.stem[0]
        assert isinstance(step, NormedConvolution)
        return step.convolution


# -- what is saved ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SavedStep:
    """The shape of a step's input; the output of its convolution, or where a pool found the largest."""

    shape: torch.Size
    tensor: Tensor | None


@dataclass(frozen=True)
class _SavedBlock:
    main: list[_SavedStep]
    shortcut: list[_SavedStep]
    output: Tensor


@dataclass
class SavedMaps:
    """What a forward pass saves for its backward pass, which uses it up."""

    affine: Tensor
    stem: list[_SavedStep]
    blocks: list[_SavedBlock]
    head: Any


# -- the passes -------------------------------------------------------------------------------------


class FusedResidual:
    def __init__(self, network: FusedNetwork) -> None:
        self.network = network

    def is_prepared(self, images: Tensor) -> bool:
        outputs, inputs = self.network.first.weight.shape[:2]
        return images.ndim == 4 and images.shape[1] == outputs != inputs

    def prepare(self, images: Tensor) -> Tensor:
        if images.ndim != 4:
            raise ValueError(f"images must be of shape (B, 3, H, W), got {tuple(images.shape)}")
        return self.network.first.forward(images.detach().contiguous(memory_format=torch.channels_last))

    def forward(self, prepared: Tensor, affine: Tensor, *, keep: bool) -> tuple[Tensor, SavedMaps | None]:
        x, stem = self._steps(self.network.stem, prepared, affine, keep=keep, first_is_done=True)
        blocks = []
        for block in self.network.blocks:
            x, saved = self._block(block, x, affine, keep=keep)
            blocks.append(saved)
        features, head = self.network.head.forward(x, None, affine, None, keep=keep)
        return features, SavedMaps(affine, stem, blocks, head) if keep else None

    def _block(
        self, block: ResidualBlock, x: Tensor, affine: Tensor, *, keep: bool
    ) -> tuple[Tensor, _SavedBlock]:
        shortcut, saved_shortcut = self._steps(block.shortcut, x, affine, keep=keep)
        inner, saved_main = self._steps(block.main[:-1], x, affine, keep=keep)
        last = block.last
        convolved = last.convolution.forward(inner)
        saved_main.append(_SavedStep(inner.shape, convolved))
        output = channel_norm.forward(
            convolved, affine, last.norm, skip=shortcut, relu=True, in_place=not keep
        )
        return output, _SavedBlock(saved_main, saved_shortcut, output)

    @staticmethod
    def _steps(
        steps: Sequence[Step], x: Tensor, affine: Tensor, *, keep: bool, first_is_done: bool = False
    ) -> tuple[Tensor, list[_SavedStep]]:
        """The output of ``steps``; ``first_is_done``: ``x`` is the output of the first convolution."""
        saved = []
        for number, step in enumerate(steps):
            shape = x.shape
            if isinstance(step, Pool):
                x, tensor = step.forward(x)
            else:
                done = first_is_done and number == 0
                tensor = x if done else step.convolution.forward(x)
                x = channel_norm.forward(
                    tensor, affine, step.norm, relu=step.relu, in_place=not keep and not done
                )
            saved.append(_SavedStep(shape, tensor if keep else None))
        return x, saved

    def backward(self, gradient: Tensor, saved: SavedMaps) -> Tensor:
        affine = saved.affine
        rows = new_gradient_rows(affine, len(gradient))
        total = self.network.head.backward(gradient, saved.head, rows)
        saved.head, other = None, None
        for block in reversed(self.network.blocks):
            total, other = self._block_backward(block, saved.blocks.pop(), total, other, affine, rows)
        total = total if other is None else total + other
        self._steps_backward(self.network.stem, saved.stem, total, affine, rows, to_images=True)
        return rows.sum(1)

    def _block_backward(
        self,
        block: ResidualBlock,
        saved: _SavedBlock,
        gradient: Tensor,
        other: Tensor | None,
        affine: Tensor,
        rows: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Both parts of the gradient of a block's input, given those of its output."""
        last, kept = block.last, saved.main[-1]
        assert kept.tensor is not None
        found = channel_norm.backward(
            gradient, other, kept.tensor, saved.output, affine, last.norm, rows, relu=True, needs_skip=True
        )
        assert found.of_input is not None and found.after_relu is not None  # noqa: PT018
        inner = last.convolution.backward(found.of_input, kept.shape)
        main = self._steps_backward(block.main[:-1], saved.main[:-1], inner, affine, rows)
        shortcut = self._steps_backward(block.shortcut, saved.shortcut, found.after_relu, affine, rows)
        return main, shortcut

    @staticmethod
    def _steps_backward(
        steps: Sequence[Step],
        saved: list[_SavedStep],
        gradient: Tensor,
        affine: Tensor,
        rows: Tensor,
        *,
        to_images: bool = False,
    ) -> Tensor:
        """The gradient of what ``steps`` got; ``to_images``: it stops before the first convolution."""
        for number in reversed(range(len(steps))):
            step, kept = steps[number], saved[number]
            if isinstance(step, Pool):
                gradient = step.backward(gradient, kept.shape, kept.tensor)
                continue
            assert kept.tensor is not None
            needs_input = not (to_images and number == 0)
            found = channel_norm.backward(
                gradient,
                None,
                kept.tensor,
                None,
                affine,
                step.norm,
                rows,
                relu=step.relu,
                needs_input=needs_input,
            )
            if found.of_input is not None:
                gradient = step.convolution.backward(found.of_input, kept.shape)
        return gradient
