"""The contract that every method keeps, as one call."""

from collections.abc import Callable
from typing import Any

from ramen.methods._method import Method
from ramen.methods._registry import get_method
from ramen.models.classifier import ZeroShotClassifier
from ramen.testing import answers, bad_input, states
from ramen.testing.bench import Bench
from ramen.testing.models import IMAGE_SIZE, noise, small_classifier
from ramen.utils.numerics import plain_numerics

CONTRACT: tuple[Callable[[Bench], None], ...] = (
    answers.check_record,
    answers.check_output,
    answers.check_zero_shot,
    answers.check_inputs_stay,
    answers.check_classifier_stays,
    answers.check_determinism,
    answers.check_seeds,
    answers.check_tags_unread,
    states.check_reset,
    states.check_state,
    states.check_foreign_state,
    states.check_damaged_state,
    states.check_other_parameters,
    states.check_bounded_memory,
    bad_input.check_non_finite_images,
    bad_input.check_overflowing_images,
    answers.check_gradient_modes,
    answers.check_batch_independence,
    answers.check_streams_together,
    answers.check_passes,
    bad_input.check_bad_input,
    bad_input.check_bad_parameters,
)


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
    size = classifier.image_size or (IMAGE_SIZE, IMAGE_SIZE)
    batches = tuple(noise(n, size, seed) for seed, n in enumerate((6, 6, 1, 6, 3)))

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
