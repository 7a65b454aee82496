import faulthandler
from collections.abc import Iterator

import pytest

from tests.helpers.ray_machine import ray_machine

pytest.importorskip("ray", reason="need ray: pip install 'ramen-tta[ray]'")

_PATIENCE = 600  # seconds; only a deadlock takes so long


@pytest.fixture(scope="module")
def proxy_port() -> Iterator[int]:
    """Ray with its HTTP proxy."""
    with ray_machine() as port:
        yield port


@pytest.fixture(autouse=True)
def deadlocks_are_seen() -> Iterator[None]:
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
