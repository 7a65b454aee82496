"""Numbers of bytes: read from text, and written for people."""

import pytest

from ramen.utils.checks import parse_bytes, readable_bytes


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 B"), (2048, "2.00 KiB"), (5_785 * 2**20, "5.65 GiB"), (3 * 2**20, "3.00 MiB")]
)
def test_readable_bytes(count: int, text: str) -> None:
    assert readable_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "count"),
    [(7, 7), ("7", 7), ("450 MiB", 450 * 2**20), ("2GB", 2 * 10**9), (" .5 kib ", 512), ("1 TiB", 2**40)],
)
def test_parse_bytes(value: object, count: int) -> None:
    assert parse_bytes("memory_budget", value) == count


@pytest.mark.parametrize("value", ["", "GiB", "-1 GiB", "1 GiBi", "1 2", "0", "0.1 B", "nan", "1e9"])
def test_text_that_is_no_number_of_bytes(value: str) -> None:
    with pytest.raises(ValueError, match="memory_budget"):
        parse_bytes("memory_budget", value)
