"""A method that fails costs its batch the adaptation, never the answers."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.client.result import LABEL
from ramen.predict.answers import BatchAnswers, begin_together
from tests.oracles.answers_by_hand import assert_same_results, results_by_hand


def pixels(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)


def keys(count: int) -> list[str]:
    return [f"image {number}" for number in range(count)]


def failing(method: ramen.Method, error: BaseException, batches: set[int]) -> ramen.Method:
    """The method raises ``error`` in these batches, counted from 0."""
    adapt, number = method.adapt, iter(range(10**9))

    def maybe(images: Tensor, usable: Tensor) -> Any:
        if next(number) in batches:
            raise error
        return adapt(images, usable)

    method.adapt = maybe
    return method


def limited(classifier: ramen.ZeroShotClassifier, error: Exception, most: int = 0) -> list[int]:
    """The encoder raises ``error`` for more images than ``most``; returns the sizes it was called with."""
    encode, sizes = classifier.encode, []

    def maybe(images: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        sizes.append(len(images))
        if len(images) > most:
            raise error
        return encode(images, *args, **kwargs)

    classifier.encode = maybe
    return sizes


@pytest.mark.parametrize("name", ["ramen", "tent", "clip", "tda"])
def test_answers_are_those_by_hand(name: str) -> None:
    classifier = testing.small_classifier(classes=7)
    answers = BatchAnswers(ramen.create(name, classifier))
    by_hand = ramen.create(name, classifier)
    for seed in range(3):
        batch = pixels(5, seed)
        found = answers.answer(keys(5), batch)
        assert found.zero_shot_fallbacks == 0
        expected = results_by_hand(by_hand, [list(zip(keys(5), batch, strict=True))])
        assert_same_results(found.results, expected)
        assert len(found.results[0].top) == 5


def test_images_are_stacked() -> None:
    answers = BatchAnswers(ramen.create("clip", testing.small_classifier()))
    assert torch.equal(answers.stack([image.numpy() for image in pixels(3)]), pixels(3))


@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes(classes: int) -> None:
    method = ramen.create("ramen", testing.small_classifier(classes=classes))
    (result,) = BatchAnswers(method).answer(["x"], pixels(1)).results
    assert len(result.top) == classes
    assert sum(probability for _, probability in result.top) == pytest.approx(1)
    assert result.top[0] == (result.label, result.probability)


def test_of_equal_classes_the_first_is_the_best() -> None:
    """As in ``argmax``, so that the label is always the first of the top five."""
    classifier = testing.small_classifier(classes=9)
    classifier.class_embeddings.copy_(classifier.class_embeddings[:1].expand_as(classifier.class_embeddings))
    (result,) = BatchAnswers(ramen.create("ensemble", classifier)).answer(["x"], pixels(1)).results
    assert [label for label, _ in result.top] == list(classifier.classes[:5])
    assert result.zero_shot_label == result.label == classifier.classes[0]


def test_images_that_the_method_refuses_are_answered_zero_shot() -> None:
    method = ramen.create("ramen", testing.small_classifier())
    adapt = method.adapt

    def refuse_the_second(images: Tensor, usable: Tensor) -> Any:
        usable = usable.clone()
        usable[1] = False
        return adapt(images, usable)

    method.adapt = refuse_the_second
    found = BatchAnswers(method).answer(keys(3), pixels(3))
    assert found.zero_shot_fallbacks == 0  # the method did not fail
    assert [result.adapted for result in found.results] == [True, False, True]
    assert found.results[1].support == 0
    assert not found.results[1].changed
    assert method.images_refused == 1


ERRORS: list[Callable[[], Exception]] = [
    lambda: RuntimeError("singular matrix"),
    lambda: torch.OutOfMemoryError("CUDA out of memory"),
    lambda: MemoryError(),
    lambda: AssertionError(),
]


@pytest.mark.parametrize("make_error", ERRORS)
def test_a_batch_that_fails_is_answered_zero_shot(make_error: Callable[[], Exception]) -> None:
    classifier = testing.small_classifier()
    answers = BatchAnswers(failing(ramen.create("ramen", classifier), make_error(), {1, 2, 4}))
    zero_shot, by_hand = ramen.create("ensemble", classifier), ramen.create("ramen", classifier)
    for number in range(6):
        batch = pixels(4, number)
        pairs = [list(zip(keys(4), batch, strict=True))]
        found = answers.answer(keys(4), batch)
        if number in (1, 2, 4):
            assert found.zero_shot_fallbacks == 4
            assert all(not r.adapted and r.support == 0 and r.error is None for r in found.results)
            labels = [(r.label, r.zero_shot_label) for r in results_by_hand(zero_shot, pairs)]
            assert [(r.label, r.zero_shot_label) for r in found.results] == labels
            assert all(r.probability == r.zero_shot_probability for r in found.results)
            assert all(r.entropy == r.zero_shot_entropy for r in found.results)
        else:  # as if the others had never been
            assert found.zero_shot_fallbacks == 0
            assert_same_results(found.results, results_by_hand(by_hand, pairs))
        assert {r.state_version for r in found.results} == {by_hand.images_seen}


def test_zero_shot_answers_that_need_too_much_memory_come_in_halves() -> None:
    classifier = testing.small_classifier()
    expected = results_by_hand(
        ramen.create("ensemble", classifier), [list(zip(keys(7), pixels(7), strict=True))]
    )
    answers = BatchAnswers(failing(ramen.create("tent", classifier), RuntimeError(), {0}))
    sizes = limited(classifier, torch.OutOfMemoryError("no"), most=2)
    found = answers.answer(keys(7), pixels(7))
    assert sizes == [7, 3, 1, 2, 4, 2, 2]
    assert found.zero_shot_fallbacks == 7
    assert [r.key for r in found.results] == keys(7)
    assert [r.label for r in found.results] == [r.label for r in expected]
    assert not any(r.adapted for r in found.results)


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (ValueError("no such layer"), [3]),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), [3, 1, 2, 1, 1]),
    ],
)
def test_if_nothing_answers_each_image_gets_an_error(error: Exception, calls: list[int]) -> None:
    classifier = testing.small_classifier()
    answers = BatchAnswers(failing(ramen.create("tent", classifier), KeyError("x"), {0}))
    sizes = limited(classifier, error)
    found = answers.answer(keys(3), pixels(3))
    assert sizes == calls
    assert found.zero_shot_fallbacks == 0
    assert [r.key for r in found.results] == keys(3)
    for result in found.results:
        assert result.error == f"{result.key} cannot be answered: {type(error).__name__}: {error}"
        assert (result.label, result.adapted, result.top, result.state_version) == (None, False, (), 0)


def test_interrupts_are_not_answered() -> None:
    method = failing(ramen.create("ramen", testing.small_classifier()), KeyboardInterrupt(), {0})
    answers = BatchAnswers(method)
    with pytest.raises(KeyboardInterrupt):
        answers.answer(keys(2), pixels(2))
    assert all(result.adapted for result in answers.answer(keys(2), pixels(2)).results)


def test_errors_are_logged_once_per_kind_and_then_ever_more_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    method = ramen.create("tent", testing.small_classifier())
    answers = BatchAnswers(method)

    def fail_with(error: Exception) -> None:
        def adapt(images: Tensor, usable: Tensor) -> Any:
            raise error

        method.adapt = adapt
        answers.answer(keys(1), pixels(1))

    with caplog.at_level(logging.INFO, logger="ramen"):
        for _ in range(120):
            fail_with(RuntimeError("singular matrix"))
        fail_with(KeyError("other"))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4
    assert {(record.name, record.levelno) for record in caplog.records} == {("ramen", logging.ERROR)}
    assert messages[0].startswith("adaptation failed, so that a batch was answered zero-shot (logged again ")
    assert "Traceback (most recent call last)" in messages[0]
    assert messages[0].endswith("RuntimeError: singular matrix\n")
    assert messages[1:3] == [
        f"adaptation failed, so that a batch was answered zero-shot, for the {count}th time: "
        "RuntimeError: singular matrix"
        for count in (10, 100)
    ]
    assert messages[3].endswith("KeyError: 'other'\n")
    assert all(record.exc_info is None for record in caplog.records)  # it would keep tensors alive


def test_several_methods_at_once() -> None:
    """Each gets what it would get alone, whatever the others have; what fails is its own."""
    seven, nine = testing.small_classifier(classes=7), testing.small_classifier(classes=9)
    classifiers, counts = [seven, nine, seven, seven, nine], [2, 1, 3, 1, 2]
    answers = [BatchAnswers(ramen.create("ramen", clf), all_probabilities=True) for clf in classifiers]
    batches = [pixels(count, seed) for seed, count in enumerate(counts)]
    predictions: list[Any] = [
        own.method.predict(own.images(batch), return_support=True)
        for own, batch in zip(answers, batches, strict=True)
    ]

    def impossible() -> Tensor:
        raise RuntimeError("no memory")

    predictions[2] = replace(predictions[2], zero_shot=impossible)
    predictions[3] = KeyError("adaptation")
    pending = begin_together(answers, predictions)
    assert [type(one) for one in pending if isinstance(one, Exception)] == [RuntimeError, KeyError]
    for place in (0, 1, 4):
        alone = BatchAnswers(ramen.create("ramen", classifiers[place]), all_probabilities=True)
        expected = alone.answer(keys(counts[place]), batches[place])
        found = answers[place].finish(pending[place])
        assert found is not None
        assert answers[place].results(keys(counts[place]), found).results == expected.results
        assert found.probabilities is not None
        assert np.allclose(found.probabilities.sum(1), 1)
        assert np.array_equal(found.probabilities.argmax(1), found.rows[:, LABEL])
    assert answers[2].finish(pending[2]) is None
