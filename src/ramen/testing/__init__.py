"""The contract that every method keeps, as one call: ``ramen.testing.check_method("ramen")``.

It runs a method, also one of your own, on a small random CLIP through everything that a caller may rely on.
The functions ``check_...`` are the contract's clauses; each takes a ``Bench`` and raises AssertionError.
"""

from ramen.testing.answers import (
    check_batch_independence,
    check_classifier_stays,
    check_determinism,
    check_gradient_modes,
    check_inputs_stay,
    check_output,
    check_passes,
    check_record,
    check_seeds,
    check_tags_unread,
    check_zero_shot,
)
from ramen.testing.bad_input import (
    check_bad_input,
    check_bad_parameters,
    check_non_finite_images,
    check_overflowing_images,
)
from ramen.testing.bench import Bench, CountingClassifier
from ramen.testing.contract import CONTRACT, check_method
from ramen.testing.models import SmallTextEncoder, small_classifier, small_tower
from ramen.testing.states import (
    check_bounded_memory,
    check_damaged_state,
    check_foreign_state,
    check_other_parameters,
    check_reset,
    check_state,
)

__all__ = [
    "CONTRACT",
    "Bench",
    "CountingClassifier",
    "SmallTextEncoder",
    "check_bad_input",
    "check_bad_parameters",
    "check_batch_independence",
    "check_bounded_memory",
    "check_classifier_stays",
    "check_damaged_state",
    "check_determinism",
    "check_foreign_state",
    "check_gradient_modes",
    "check_inputs_stay",
    "check_method",
    "check_non_finite_images",
    "check_other_parameters",
    "check_output",
    "check_overflowing_images",
    "check_passes",
    "check_record",
    "check_reset",
    "check_seeds",
    "check_state",
    "check_tags_unread",
    "check_zero_shot",
    "small_classifier",
    "small_tower",
]
