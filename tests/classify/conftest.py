"""A service for the tests of ``ramen classify --server``."""

from collections.abc import Iterator

import pytest

from tests.fakes.service import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService(max_batch=4)


@pytest.fixture
def url(service: FakeService) -> Iterator[str]:
    with service.listening() as found:
        yield found
