"""Values on the command line."""

import math

import pytest

from ramen.experiments.values import parse_pairs, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-2", 0.01), ("inf", math.inf), ("True", True), ("false", False), ("causal", "causal")],
)
def test_values(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_pairs_keep_what_follows_the_first_sign():
    assert parse_pairs("--set", ["template=a = {}"]) == {"template": "a = {}"}
