"""Shared fixtures of the tests of ``ramen data``."""

import pytest
from typer.testing import CliRunner

from ramen.cli import app


@pytest.fixture
def run():
    """Run ``ramen data`` with arguments."""

    def invoke(*arguments):
        return CliRunner().invoke(app, ["data", *map(str, arguments)])

    return invoke
