"""The two passes that several streams share: their images go through the encoder together."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from weakref import WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.kernels.cuda_graphs import Recorded
from ramen.methods._base import Method
from ramen.methods._pass_sharing import FirstPass
from ramen.methods._recorded_own_steps import RecordedOwnSteps
from ramen.methods._steps import adapted_logits, entropy, sample_gradients
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.devices import upload


class SharedBatch:
    """The images of several methods in chunks that go through the encoder one after the other.

    Args:
        methods: Whose encoder is the same.
        images: Of each, on its device.
        sizes: That chunks may have, the smallest first; if there are none, all images are one chunk.

    Attributes:
        chunks: Each of an allowed size.
        rows: The rows of each method in all chunks together.
        padded: How many rows these are.
    """

    def __init__(self, methods: Sequence[Method], images: Sequence[Tensor], sizes: list[int]) -> None:
        ends = list(accumulate(map(len, images)))
        self.rows = [slice(end - len(own), end) for own, end in zip(images, ends, strict=True)]
        whole = torch.cat(list(images))
        self.chunks = [_filled_up(chunk, sizes) for chunk in whole.split(sizes[-1] if sizes else len(whole))]
        self.padded = sum(map(len, self.chunks))
        owners = [method.classifier for method in methods]
        self._classifiers: list[ZeroShotClassifier] = list({id(owner): owner for owner in owners}.values())
        self._owner_of_method = [self._classifiers.index(owner) for owner in owners]
        self._device = whole.device

    def _owner_of_row(self) -> Tensor:
        """The number of the classifier of each row; -1 for rows that are filled up."""
        owners = torch.full((self.padded,), -1, device="cpu")
        for rows, owner in zip(self.rows, self._owner_of_method, strict=True):
            owners[rows] = owner
        return upload(owners, self._device)

    def first_passes(self, chunks: list[Tensor]) -> list[FirstPass]:
        """The first pass of each method's images."""
        embeddings, gradients = [], []
        by_classifier: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self._classifiers]
        sizes, is_one = [len(chunk) for chunk in chunks], len(self._classifiers) == 1
        owners = [None] * len(chunks) if is_one else self._owner_of_row().split(sizes)
        for chunk, owner_of_row in zip(chunks, owners, strict=True):
            if owner_of_row is None:
                found, logits, entropies, own = recordings_of(self._classifiers[0]).first(chunk)
                by_classifier[0].append((logits, entropies))
            else:
                found, pairs, own = _gradients_by_classifier(self._classifiers, chunk, owner_of_row)
                for seen, pair in zip(by_classifier, pairs, strict=True):
                    seen.append(pair)
            embeddings.append(found)
            gradients.append(own)
        of_all, gradients_of_all = torch.cat(embeddings), torch.cat(gradients)
        firsts = []
        for seen in by_classifier:
            logits, entropies = (torch.cat(pieces) for pieces in zip(*seen, strict=True))
            firsts.append(FirstPass(of_all, logits, entropies, gradients_of_all))
        return [firsts[owner].of(rows) for rows, owner in zip(self.rows, self._owner_of_method, strict=True)]

    def second_passes(self, chunks: list[Tensor], affine: Tensor) -> list[Tensor]:
        """The logits of each method's images, with norm parameters ``(padded, G)``."""
        by_classifier: list[list[Tensor]] = [[] for _ in self._classifiers]
        for chunk, own in zip(chunks, affine.split([len(c) for c in chunks]), strict=True):
            if len(self._classifiers) == 1:
                by_classifier[0] += recordings_of(self._classifiers[0]).second(chunk, own)
            else:
                embeddings = self._classifiers[0].encode(chunk, own)
                for seen, classifier in zip(by_classifier, self._classifiers, strict=True):
                    seen.append(classifier.logits(embeddings))
        logits = [torch.cat(seen) for seen in by_classifier]
        return [logits[owner][rows] for rows, owner in zip(self.rows, self._owner_of_method, strict=True)]


def _filled_up(chunk: Tensor, sizes: list[int]) -> Tensor:
    size = next((size for size in sizes if size >= len(chunk)), len(chunk))
    return F.pad(chunk, (0,) * 7 + (size - len(chunk),)) if size > len(chunk) else chunk


def _gradients_by_classifier(
    classifiers: list[ZeroShotClassifier], images: Tensor, owners: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]:
    """``sample_gradients`` for images of classifiers that share an encoder.

    All classifiers look at all images, which costs little; the gradient is that of each image's own entropy.

    Args:
        classifiers: Them.
        images: The batch.
        owners: The number of each image's classifier; -1 for none.

    Returns:
        Embeddings; logits and entropies for each classifier; gradients.
    """
    encoder = classifiers[0].encoder
    with torch.enable_grad():
        rows = encoder.base.expand(len(images), -1).requires_grad_()
        embeddings = encoder(images, rows)
        logits = [classifier.logits(embeddings) for classifier in classifiers]
        entropies = [entropy(own) for own in logits]
        sums = [torch.where(owners == number, own, 0).sum() for number, own in enumerate(entropies)]
        gradients = encoder.gradient(torch.stack(sums).sum(), rows)
    pairs = [(own.detach(), seen.detach()) for own, seen in zip(logits, entropies, strict=True)]
    return embeddings.detach(), pairs, gradients


class _Recordings:
    """What streams of a classifier compute, on a GPU as CUDA graphs, which share their memory.

    Attributes:
        first: The first pass, one for all streams.
        second: The second one.
        steps: What each stream does between them.
    """

    def __init__(self, classifier: ZeroShotClassifier) -> None:
        recorder = classifier.recorder()
        weak = ref(classifier)  # the table below must not keep it alive
        self.first: Recorded = recorder.record(partial(_with, weak, sample_gradients))
        self.second: Recorded = recorder.record(partial(_with, weak, adapted_logits))
        self.steps = RecordedOwnSteps(recorder)


def _with(
    classifier: "ref[ZeroShotClassifier]", function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor
) -> tuple[Tensor, ...]:
    return function(classifier(), *tensors)


_RECORDINGS: WeakKeyDictionary[ZeroShotClassifier, _Recordings] = WeakKeyDictionary()


def recordings_of(classifier: ZeroShotClassifier) -> _Recordings:
    """Those of its streams."""
    if classifier not in _RECORDINGS:
        _RECORDINGS[classifier] = _Recordings(classifier)
    return _RECORDINGS[classifier]
