"""Pages of commands and of public names."""

import re

import ramen
from tools.documentation import reference_pages
from tools.documentation.doctest_blocks import with_blocks


def test_every_public_name_has_its_place() -> None:
    page = reference_pages.page("ramen")
    missing = [name for name in ramen.__all__ if not re.search(rf"(::: [\w.]+\.|## `?){name}`?\n", page)]
    assert missing == []
    assert "::: ramen.methods._registry.create" in page
    assert "(ramen.methods.md)" in page


def test_a_module_that_is_defined_elsewhere() -> None:
    assert reference_pages.modules()["ramen.scoring"] == "ramen.experiments.scoring"
    assert "::: ramen.experiments.scoring." in reference_pages.page("ramen.scoring")


def test_a_name_is_described_once() -> None:
    page = reference_pages.page("ramen.methods")
    assert "## Method\n\nAs [`ramen.Method`](ramen.md)." in page
    assert "::: ramen.methods._passes.entropy_gradient" in page


def test_examples_of_docstrings_become_code() -> None:
    text = """Words.

    >>> 1 + 1
    2

    Args:
        x: Any.

            >>> x
    """
    expected = "Words.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nArgs:\n    x: Any.\n\n"
    expected += "        ```pycon\n        >>> x\n        ```"
    assert with_blocks(text) == expected
    assert with_blocks("no example") == "no example"
