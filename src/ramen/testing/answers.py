"""Clauses of the contract about answers: what they are, and what they must not depend on or change."""

from itertools import pairwise

import torch

from ramen.methods._registry import get_method
from ramen.methods._runner import predict_together
from ramen.testing.bench import Bench, CountingClassifier, assert_same, tolerance


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
        assert torch.allclose(out.zero_shot_logits, expected, atol=tolerance(bench)), (
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
    assert_same(first, bench.run(bench.fresh()), "a second run")
    torch.set_rng_state(before)


def check_seeds(bench: Bench) -> None:
    """The seed decides: each gives the same answers again, and only a random method depends on it."""
    own = bench.fresh()
    seed = own.seed + 1
    other = bench.run(bench.make(bench.classifier, seed=seed))
    if own.info.random:
        assert_same(other, bench.run(bench.make(bench.classifier, seed=seed)), f"again with seed {seed}")
    else:
        assert_same(bench.run(own), other, f"with seed {seed}, though info.random is False")


def check_tags_unread(bench: Bench) -> None:
    """Tags change no answer."""
    tagged = bench.fresh()
    outs = [tagged.predict(batch, tags=torch.arange(len(batch)) * 7 % 5) for batch in bench.batches]
    assert_same(bench.run(bench.fresh()), outs, "with tags")


def check_gradient_modes(bench: Bench) -> None:
    """It makes no difference whether the caller has switched gradients off or autocast on."""
    expected = bench.run(bench.fresh())
    device = bench.classifier.device.type
    with torch.no_grad():
        assert_same(expected, bench.run(bench.fresh()), "under no_grad")
    with torch.inference_mode():
        method = bench.fresh()
        outs = [method.predict(batch.clone()) for batch in bench.batches]
        assert_same(expected, outs, "under inference_mode")
    with torch.autocast(device, dtype=torch.bfloat16):
        assert_same(expected, bench.run(bench.fresh()), "under autocast")


def check_batch_independence(bench: Bench) -> None:
    """A method that says so answers an image alone as it does among others."""
    if bench.fresh().batch_dependent:
        return
    batch = bench.batches[0]
    together = bench.fresh().predict(batch).logits
    alone = torch.cat([bench.fresh().predict(image[None]).logits for image in batch])
    assert torch.allclose(together, alone, atol=tolerance(bench)), "an image alone gets another answer"


def check_streams_together(bench: Bench) -> None:
    """Streams whose passes are shared are answered like each of them alone, and learn the same."""
    together, alone = ([bench.fresh() for _ in range(2)] for _ in range(2))
    for parts in pairwise(bench.batches):
        answers = predict_together(list(zip(together, parts, strict=True)))
        for method, images, answer in zip(alone, parts, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            expected = method.predict(images)
            assert torch.allclose(answer.logits, expected.logits, atol=tolerance(bench)), (
                "a stream among others gets other answers"
            )
    seen = [(method.images_seen, method.images_refused) for method in together]
    assert seen == [(method.images_seen, method.images_refused) for method in alone], "images were miscounted"


def check_passes(bench: Bench) -> None:
    """Forward and backward passes per image are those that the method states.

    A memory that an update trains on counts as a batch, even while it holds less than one.
    """
    counter = CountingClassifier(bench.classifier)
    size = len(bench.batches[0])
    sized = bench.fresh().info.batch_sized
    method = bench.make(counter, **dict.fromkeys(sized, size))
    method.predict(bench.batches[0])  # what a method measures once, before its first answer, is no pass of it
    method.reset()
    counter.forwards.clear()
    counter.backwards.clear()
    batches = [batch for batch in bench.batches if len(batch) == size]
    for batch in batches:
        method.predict(batch)
    largest = max(counter.forwards)
    assert largest <= size or not sized, f"a pass over {largest} images with a memory of {size}"
    full = [[size] * len(passes) if sized else passes for passes in (counter.forwards, counter.backwards)]
    passes = tuple(sum(images) / (size * len(batches)) for images in full)
    declared = method.passes()  # those of the record, unless the parameters decide
    assert passes == declared, f"{passes} forward and backward passes per image, {declared} declared"
