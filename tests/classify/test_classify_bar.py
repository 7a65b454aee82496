import io

import pytest
from rich.console import Console

from ramen.classify.run import shown_on
from tests.fakes.served_results import answer, failure


@pytest.mark.parametrize(("total", "count"), [(4, "4/4"), (None, "4/?")])
def test_it_shows_how_far_it_is(total, count):
    console = Console(file=io.StringIO(), width=120)
    with shown_on(console, total) as bar:
        bar.add([answer("a"), answer("b", "dog", "cat")])
        bar.add([failure("c"), answer("[bold]d")])
    text = console.file.getvalue()
    for words in (count, "images/s", "33.3 % changed", "1 error"):
        assert words in text
