"""What a predictor should say, from ``method.predict`` on preprocessed batches and plain fp64 arithmetic."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

import ramen


def results_by_hand(
    method: ramen.Method, batches: Sequence[Sequence[tuple[str, Image.Image | str]]]
) -> list[ramen.Result]:
    """One result per pair of a key and an image, or the error that is expected for it.

    Args:
        method: A fresh one.
        batches: What should be answered together.
    """
    results = []
    for batch in batches:
        images = [image for _, image in batch if not isinstance(image, str)]
        answers = iter(_answers(method, images))
        for key, image in batch:
            if isinstance(image, str):
                results.append(ramen.Result.failed(key, image, method.images_seen))
            else:
                results.append(dataclasses.replace(next(answers), key=key))
    return results


def _answers(method: ramen.Method, images: list[Image.Image]) -> list[ramen.Result]:
    if not images:
        return []
    classes = method.classifier.classes
    out = method.predict(method.classifier.preprocess(images), return_support=method.retrieves)
    answers = []
    for row in range(len(images)):
        probabilities = _softmax(out.logits[row].tolist())
        zero_shot = _softmax(out.zero_shot_logits[row].tolist())
        ranks = sorted(range(len(classes)), key=lambda index: -probabilities[index])
        zero_shot_class = int(np.argmax(zero_shot))
        assert ranks[0] == int(out.labels[row])
        answers.append(
            ramen.Result(
                key="",
                label=classes[ranks[0]],
                probability=probabilities[ranks[0]],
                zero_shot_label=classes[zero_shot_class],
                zero_shot_probability=zero_shot[zero_shot_class],
                top=tuple((classes[index], probabilities[index]) for index in ranks[:5]),
                adapted=not bool(out.fallback[row]),
                support=int(out.support.valid[row].sum()) if method.retrieves else None,
                state_version=method.images_seen,
                entropy=_entropy(probabilities),
                zero_shot_entropy=_entropy(zero_shot),
            )
        )
    return answers


def _softmax(logits: list[float]) -> list[float]:
    powers = np.exp(np.array(logits) - max(logits))
    return (powers / powers.sum()).tolist()


def _entropy(probabilities: list[float]) -> float:
    return -sum(p * float(np.log(p)) for p in probabilities if p > 0)


def assert_same_results(
    found: Sequence[ramen.Result], expected: Sequence[ramen.Result], within: float = 1e-6
) -> None:
    """Equal in everything, numbers up to rounding."""
    assert [result.key for result in found] == [result.key for result in expected]
    for one, other in zip(found, expected, strict=True):
        ours, theirs = one.to_dict(), other.to_dict()
        top, expected_top = ours.pop("top"), theirs.pop("top")
        assert [label for label, _ in top] == [label for label, _ in expected_top]
        assert [p for _, p in top] == pytest.approx([p for _, p in expected_top], abs=within)
        assert ours == pytest.approx(theirs, abs=within)
