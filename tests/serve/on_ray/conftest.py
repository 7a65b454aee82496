import faulthandler
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ray_machine import ray_machine, run_application, small_request

pytest.importorskip("ray", reason="need ray: pip install 'ramen-tta[ray]'")

_PATIENCE = 900  # seconds; only a deadlock takes so long


@pytest.fixture(scope="package")
def proxy_port() -> Iterator[int]:
    """Ray with its HTTP proxy."""
    with ray_machine() as port:
        yield port


@pytest.fixture(scope="package")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="package")
def replicas(proxy_port: int, state: Path) -> Any:
    """Two replicas with the small classifier."""
    return run_application(small_request(state))


@pytest.fixture(autouse=True)
def deadlocks_are_seen() -> Iterator[None]:
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
