"""The contract that every method keeps, as one call: ``ramen.testing.check_method("ramen")``.

It runs a method, also one of your own, on a small random CLIP through everything that a caller may rely on.
The functions ``check_...`` are the contract's clauses; each takes a ``Bench`` and raises AssertionError.
"""

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen import prompts
from ramen.classifier import ZeroShotClassifier
from ramen.devices import plain_numerics
from ramen.methods.base import Method, Prediction
from ramen.methods.registry import get_method
from ramen.preprocess import Preprocess
from ramen.statistics import Statistics

_IMAGE_SIZE = 32
_WIDTH = 16


def small_tower(kind: str = "vit", seed: int = 0) -> nn.Module:
    """A random image tower in open_clip's own modules: ``"vit"`` (LayerNorm) or ``"resnet"`` (BatchNorm)."""
    from open_clip.modified_resnet import ModifiedResNet
    from open_clip.transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower: nn.Module
        if kind == "vit":
            tower = VisionTransformer(_IMAGE_SIZE, 8, 32, 2, 2, 2.0, output_dim=_WIDTH)
        elif kind == "resnet":
            tower = ModifiedResNet((1, 1, 1, 1), _WIDTH, heads=2, image_size=_IMAGE_SIZE, width=4)
        else:
            raise ValueError(f"kind must be 'vit' or 'resnet', got {kind!r}")
        _give_history(tower)
    return tower


@torch.no_grad()
def _give_history(tower: nn.Module) -> None:
    """Make a fresh tower tell images apart, with norm layers as they are after training."""
    for layer in tower.modules():
        if isinstance(layer, nn.LayerNorm | nn.BatchNorm2d):
            layer.weight.copy_(1 + 0.2 * torch.randn_like(layer.weight))
            layer.bias.copy_(0.2 * torch.randn_like(layer.bias))
    for parameter in tower.parameters():
        if parameter.ndim == 2:
            parameter.mul_(3)  # initial weights are so small that all images look alike
    for layer in (m for m in tower.modules() if isinstance(m, nn.BatchNorm2d)):
        layer.momentum = 1.0
    tower.train()(torch.randn(64, 3, _IMAGE_SIZE, _IMAGE_SIZE))  # running statistics that fit
    tower.eval()


def small_classifier(
    kind: str = "vit", classes: int = 5, seed: int = 0, dtype: str = "float32", device: str = "cpu"
) -> ZeroShotClassifier:
    """A classifier on ``small_tower`` with the seven templates and a text encoder, all random."""
    tower = small_tower(kind, seed)
    names = [f"class {index}" for index in range(classes)]
    encode_text = SmallTextEncoder(tower)
    return ZeroShotClassifier(
        tower,
        prompts.embed_classes(encode_text, names, prompts.ENSEMBLE),
        30.0,
        classes=names,
        templates=prompts.ENSEMBLE,
        preprocess=Preprocess((_IMAGE_SIZE, _IMAGE_SIZE)),
        encode_text=encode_text,
        dtype=dtype,
        device=device,
    )


class SmallTextEncoder:
    """A random but fixed embedding for every text.

    What all images have in common is taken out of it, so that predictions spread over the classes.
    """

    @torch.no_grad()
    def __init__(self, tower: nn.Module) -> None:
        features = tower(_noise(64, (_IMAGE_SIZE, _IMAGE_SIZE), seed=0))
        self.common = F.normalize(F.normalize(features, dim=-1).mean(0), dim=0)

    def __call__(self, texts: list[str]) -> Tensor:
        """Embeddings ``(texts, width)``."""
        seeds = [int.from_bytes(sha256(text.encode()).digest()[:7]) for text in texts]
        rows = torch.stack([torch.randn(_WIDTH, generator=torch.Generator().manual_seed(s)) for s in seeds])
        return rows - (rows @ self.common)[:, None] * self.common


def _noise(images: int, size: tuple[int, int], seed: int) -> Tensor:
    return torch.randn(images, 3, *size, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Bench:
    """What a clause of the contract needs: fresh methods and a stream."""

    make: Callable[..., Method]  # of a classifier, and parameters that replace those of the bench
    classifier: ZeroShotClassifier
    batches: tuple[Tensor, ...]  # the last one is short

    def fresh(self) -> Method:
        """A new method on the bench's classifier."""
        return self.make(self.classifier)

    def run(self, method: Method, start: int = 0, stop: int | None = None) -> list[Prediction]:
        """Predictions for a part of the stream."""
        return [method.predict(batch) for batch in self.batches[start:stop]]


def check_method(
    method: str | type[Method], classifier: ZeroShotClassifier | None = None, **parameters: Any
) -> list[str]:
    """Run a method through the contract; AssertionError lists every clause that it breaks.

    Args:
        method: A registered name or a class.
        classifier: What to try it on; a small random CLIP if not given.
        parameters: For the method.

    Returns:
        The clauses that were checked.
    """
    cls = get_method(method) if isinstance(method, str) else method
    classifier = small_classifier() if classifier is None else classifier
    size = classifier.image_size or (_IMAGE_SIZE, _IMAGE_SIZE)
    batches = tuple(_noise(n, size, seed) for seed, n in enumerate((6, 6, 1, 6, 3)))

    @plain_numerics()  # as ramen.create does
    def make(clf: ZeroShotClassifier, **others: Any) -> Method:
        return cls(clf, **{**parameters, **others})

    bench = Bench(make, classifier, batches)
    failures = []
    for check in CONTRACT:
        try:
            check(bench)
        except Exception as failure:
            kind = "" if isinstance(failure, AssertionError) else f"{type(failure).__name__}: "
            failures.append(f"{check.__name__.removeprefix('check_')}: {kind}{failure}")
    if failures:
        raise AssertionError(f"{cls.__name__} breaks its contract:\n  " + "\n  ".join(failures))
    return [check.__name__.removeprefix("check_") for check in CONTRACT]


def _same(a: list[Prediction], b: list[Prediction], what: str) -> None:
    for index, (left, right) in enumerate(zip(a, b, strict=True)):
        assert torch.equal(left.logits, right.logits), f"{what}: logits differ in batch {index}"


def _saved_and_loaded(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Tensor] = torch.load(file, weights_only=True)
    return loaded


def check_record(bench: Bench) -> None:
    """The record of facts is complete and the method can be created by its name."""
    info = bench.fresh().info
    for name in ("name", "title", "paper", "updates", "predicts_with"):
        assert getattr(info, name), f"info.{name} is empty"
    assert get_method(info.name).info is info, f"{info.name} is registered for another class"
    assert all(isinstance(n, int) and n >= 0 for n in (info.forwards, info.backwards)), (
        "passes must be counts"
    )


def check_output(bench: Bench) -> None:
    """From the first image on, for full, short and single batches: finite fp32 logits of the right shape."""
    method = bench.fresh()
    for batch, out in zip(bench.batches, bench.run(method), strict=True):
        expected = (len(batch), bench.classifier.num_classes)
        assert tuple(out.logits.shape) == expected, (
            f"logits have shape {tuple(out.logits.shape)}, not {expected}"
        )
        assert out.logits.dtype == bench.classifier.class_embeddings.dtype, f"logits are {out.logits.dtype}"
        assert out.logits.device == batch.device, "logits are not on the images' device"
        assert out.logits.isfinite().all(), "logits are not finite"
        assert not out.logits.requires_grad, "logits carry a graph"
        assert torch.equal(out.labels, out.logits.argmax(1)), "labels are not those of the logits"
        assert not out.fallback.any(), "a good image was refused"
    assert method.images_seen == sum(map(len, bench.batches)), "images_seen is wrong"


def check_zero_shot(bench: Bench) -> None:
    """``zero_shot_logits`` are the classifier's own at every point of the stream."""
    for batch, out in zip(bench.batches, bench.run(bench.fresh()), strict=True):
        expected = bench.classifier.logits(bench.classifier.encode(batch)).to(batch.device)
        assert torch.allclose(out.zero_shot_logits, expected, atol=_tolerance(bench)), (
            "zero-shot logits are off"
        )


def check_inputs_stay(bench: Bench) -> None:
    """Images and tags are not changed."""
    method = bench.fresh()
    for batch in bench.batches:
        images, tags = batch.clone(), torch.arange(len(batch))
        method.predict(images, tags=tags)
        assert torch.equal(images, batch), "images were changed"
        assert torch.equal(tags, torch.arange(len(batch))), "tags were changed"


def check_classifier_stays(bench: Bench) -> None:
    """The classifier is not changed."""
    before = {name: tensor.clone() for name, tensor in bench.classifier.encoder.weights().items()}
    classes = bench.classifier.class_embeddings.clone()
    bench.run(bench.fresh())
    after = bench.classifier.encoder.weights()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert not changed, f"weights were changed: {', '.join(changed)}"
    assert torch.equal(classes, bench.classifier.class_embeddings), "class embeddings were changed"


def check_determinism(bench: Bench) -> None:
    """The same stream gives the same answers, and nobody else's random numbers are used up."""
    before = torch.get_rng_state()
    first = bench.run(bench.fresh())
    assert torch.equal(before, torch.get_rng_state()), "the global random state was changed"
    torch.rand(7)
    _same(first, bench.run(bench.fresh()), "a second run")
    torch.set_rng_state(before)


def check_tags_unread(bench: Bench) -> None:
    """Tags change no answer."""
    tagged = bench.fresh()
    outs = [tagged.predict(batch, tags=torch.arange(len(batch)) * 7 % 5) for batch in bench.batches]
    _same(bench.run(bench.fresh()), outs, "with tags")


def check_reset(bench: Bench) -> None:
    """``reset`` equals fresh."""
    method = bench.fresh()
    first = bench.run(method)
    method.reset()
    assert method.images_seen == 0, "images_seen is not 0 after reset"
    assert method.images_refused == 0, "images_refused is not 0 after reset"
    _same(first, bench.run(method), "after reset")


def check_state(bench: Bench) -> None:
    """A saved state is plain tensors, is not touched by what comes later, and continues bit for bit."""
    method = bench.fresh()
    bench.run(method, stop=2)
    state = method.state_dict()
    not_plain = [name for name, value in state.items() if type(value) is not Tensor]
    assert not not_plain, f"not plain tensors: {', '.join(not_plain)}"
    kept = copy.deepcopy(state)
    rest = bench.run(method, start=2)
    changed = [name for name in state if not torch.equal(state[name], kept[name])]
    assert not changed, f"a saved state changes with the method: {', '.join(changed)}"
    resumed = bench.fresh()
    resumed.load_state_dict(_saved_and_loaded(state))
    _same(rest, bench.run(resumed, start=2), "after loading a state")
    assert resumed.images_seen == method.images_seen, "images_seen was not continued"
    assert torch.equal(state["header"], kept["header"]), "loading changed the state"


def check_foreign_state(bench: Bench) -> None:
    """A state of other classes, another model, method or version is refused and changes nothing."""
    own, method = bench.classifier, bench.fresh()
    first = bench.run(method, stop=2)
    header = method.state_dict()
    for what, other in _strangers(own).items():
        stranger = bench.make(other)
        bench.run(stranger, stop=1)
        _assert_refused(method, stranger.state_dict(), what)
    broken = {**header, "header": torch.tensor(list(b'{"version": 99}'), dtype=torch.uint8)}
    _assert_refused(method, broken, "another version")
    _assert_refused(method, {k: v for k, v in header.items() if k != "header"}, "no header")
    again = bench.fresh()
    _same(first, bench.run(again, stop=2), "a fresh run")
    _same(bench.run(again, start=2), bench.run(method, start=2), "after refused states")


def _strangers(own: ZeroShotClassifier) -> dict[str, ZeroShotClassifier]:
    renamed = copy.copy(own)
    renamed.classes = ("a new name", *own.classes[1:])
    other_weights = copy.copy(own)
    other_weights.encoder = copy.copy(own.encoder)
    other_weights.encoder.base = own.encoder.base + 0.01
    renamed._fingerprint = other_weights._fingerprint = None
    return {"other classes": renamed, "another model": other_weights}


def _assert_refused(method: Method, state: dict[str, Tensor], what: str) -> None:
    try:
        method.load_state_dict(state)
    except ValueError as error:
        assert str(error), f"the refusal of {what} says nothing"
    else:
        raise AssertionError(f"a state of {what} was accepted")


def check_bounded_memory(bench: Bench) -> None:
    """What is kept of the stream never takes more than ``memory_bytes`` says."""
    method = bench.fresh()
    for _ in range(4):
        bench.run(method)
        kept = sum(tensor.numel() * tensor.element_size() for tensor in method.content().values())
        # a few bytes of counters are no memory of the stream
        assert kept <= method.memory_bytes() + 64, f"{kept} bytes kept, {method.memory_bytes()} declared"


def check_non_finite_images(bench: Bench) -> None:
    """NaN and infinite images get a finite zero-shot answer, are counted, and do not hurt their batch."""
    method = bench.fresh()
    bench.run(method, stop=1)
    images = bench.batches[1].clone()
    images[1], images[3, 0, 0, 0] = torch.nan, torch.inf
    out = method.predict(images)
    assert out.logits.isfinite().all(), "logits are not finite"
    assert out.fallback.tolist() == [False, True, False, True, False, False], "fallback marks other images"
    mended = torch.nan_to_num(images, nan=0.0, posinf=0.0, neginf=0.0)
    expected = bench.classifier.logits(bench.classifier.encode(mended)).to(images.device)
    for bad in (1, 3):
        close = torch.allclose(out.logits[bad], expected[bad], atol=_tolerance(bench))
        assert close, "a non-finite image is not answered zero-shot with its bad pixels set to 0"
    assert method.images_refused == 2, f"images_refused is {method.images_refused}, not 2"
    kept = [name for name, t in method.content().items() if t.is_floating_point() and not t.isfinite().all()]
    assert not kept, f"non-finite numbers were kept in {', '.join(kept)}"
    only_nan = method.predict(torch.full_like(images, torch.nan))
    assert only_nan.logits.isfinite().all(), "a batch of NaN images has no finite answer"
    after = bench.run(method, start=2)
    assert all(o.logits.isfinite().all() for o in after), "answers after a NaN image are not finite"


def check_overflowing_images(bench: Bench) -> None:
    """An image that overflows in the encoder, though its pixels are finite, leaves its batch alone."""
    images = bench.batches[1].clone()
    images[2] = 1e38
    huge = bench.fresh().predict(images)
    images[2] = torch.nan
    missing = bench.fresh().predict(images)
    assert huge.logits.isfinite().all(), "logits are not finite"
    if huge.fallback[2]:
        others = [0, 1, 3, 4, 5]
        close = torch.allclose(huge.logits[others], missing.logits[others], atol=_tolerance(bench))
        assert close, "the other images of the batch are answered otherwise than without it"
        assert not huge.fallback[others].any(), "other images of the batch are refused"


def check_gradient_modes(bench: Bench) -> None:
    """It makes no difference whether the caller has switched gradients off or autocast on."""
    expected = bench.run(bench.fresh())
    device = bench.classifier.device.type
    with torch.no_grad():
        _same(expected, bench.run(bench.fresh()), "under no_grad")
    with torch.inference_mode():
        method = bench.fresh()
        outs = [method.predict(batch.clone()) for batch in bench.batches]
        _same(expected, outs, "under inference_mode")
    with torch.autocast(device, dtype=torch.bfloat16):
        _same(expected, bench.run(bench.fresh()), "under autocast")


def check_batch_independence(bench: Bench) -> None:
    """A method that says so answers an image alone as it does among others."""
    if bench.fresh().batch_dependent:
        return
    batch = bench.batches[0]
    together = bench.fresh().predict(batch).logits
    alone = torch.cat([bench.fresh().predict(image[None]).logits for image in batch])
    assert torch.allclose(together, alone, atol=_tolerance(bench)), "an image alone is answered otherwise"


def check_passes(bench: Bench) -> None:
    """Forward and backward passes an image are those that the method states.

    A memory that an update trains on counts as a batch, even while it holds less than one.
    """
    counter = _Counting(bench.classifier)
    size = len(bench.batches[0])
    sized = bench.fresh().info.batch_sized
    method = bench.make(counter, **dict.fromkeys(sized, size))
    batches = [batch for batch in bench.batches if len(batch) == size]
    for batch in batches:
        method.predict(batch)
    largest = max(counter.forwards)
    assert largest <= size or not sized, f"a pass over {largest} images with a memory of {size}"
    full = [[size] * len(passes) if sized else passes for passes in (counter.forwards, counter.backwards)]
    passes = tuple(sum(images) / (size * len(batches)) for images in full)
    declared = method.passes()  # those of the record, unless the parameters decide
    assert passes == declared, f"{passes} forward and backward passes an image, {declared} declared"


class _Counting(ZeroShotClassifier):
    """A classifier that notes how many images each pass through its encoder has."""

    def __init__(self, original: ZeroShotClassifier) -> None:
        self.__dict__.update(original.__dict__)
        self.compile = False  # a replayed graph makes no calls that could be counted
        self.forwards: list[int] = []
        self.backwards: list[int] = []

    def encode(
        self, images: Tensor, affine: Tensor | None = None, *, statistics: Statistics | None = None
    ) -> Tensor:
        self.forwards.append(len(images))
        return super().encode(images, affine, statistics=statistics)

    def gradient(self, loss: Tensor, affine: Tensor) -> Tensor:
        self.backwards.append(self.forwards[-1])
        return super().gradient(loss, affine)


def check_bad_input(bench: Bench) -> None:
    """Wrong input is refused by name and changes nothing."""
    good = bench.batches[0]
    bad: dict[str, object] = {
        "a list": [good],
        "uint8": torch.zeros(2, 3, *good.shape[2:], dtype=torch.uint8),
        "no batch axis": good[0],
        "one channel": good[:, :1],
        "an empty batch": good[:0],
    }
    method = bench.fresh()
    for what, images in bad.items():
        try:
            method.predict(images)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            assert "images" in str(error), f"the error for {what} does not name its argument: {error}"
        else:
            raise AssertionError(f"{what} was accepted")
    for tags in (torch.zeros(len(good)), torch.zeros(len(good) + 1, dtype=torch.int64)):
        try:
            method.predict(good, tags=tags)
        except ValueError as error:
            assert "tags" in str(error), f"the error does not name tags: {error}"
        else:
            raise AssertionError(f"tags of shape {tuple(tags.shape)} and type {tags.dtype} were accepted")
    _same(bench.run(bench.fresh()), bench.run(method), "after refused input")


def _tolerance(bench: Bench) -> float:
    return 0.5 if bench.classifier.dtype in (torch.float16, torch.bfloat16) else 1e-3


CONTRACT: tuple[Callable[[Bench], None], ...] = (
    check_record,
    check_output,
    check_zero_shot,
    check_inputs_stay,
    check_classifier_stays,
    check_determinism,
    check_tags_unread,
    check_reset,
    check_state,
    check_foreign_state,
    check_bounded_memory,
    check_non_finite_images,
    check_overflowing_images,
    check_gradient_modes,
    check_batch_independence,
    check_passes,
    check_bad_input,
)
