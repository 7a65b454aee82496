"""Shared fixtures; each worker of the test run computes on one thread, so that workers do not fight."""

import gc
import os
import random
import zlib
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.methods import _registry
from tests.helpers.interrupts import take_interrupts
from tests.helpers.process_team import TEAM_SIZE, ProcessTeam
from tests.helpers.shared_files import MEASURING_MODEL, PAPER_FACTS, REAL_CLIP, REAL_NETWORK
from tests.helpers.skip_summary import pytest_terminal_summary
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.helpers.tiny_models import TINY_VIT, add_tiny_model

__all__ = ["pytest_terminal_summary"]  # a hook: pytest finds it here by its name
# A program that needs atheris, and methods that are registered when they are imported.
collect_ignore = ["fuzz/run.py", "fakes/odd_methods.py"]

# The same commit gives the same result; `make test-all` looks for new examples.
hypothesis.settings.register_profile("same-examples", derandomize=True)
if not RUN_SLOW_TESTS:
    hypothesis.settings.load_profile("same-examples")


def pytest_configure(config: pytest.Config) -> None:
    take_interrupts()
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)
    for folder in (MEASURING_MODEL, REAL_NETWORK, REAL_CLIP, PAPER_FACTS):
        try:
            folder.check()
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {
        "gpu": "" if torch.cuda.is_available() else "need a CUDA device",
        "testbed": MEASURING_MODEL.missing,
        "testbed_real": REAL_NETWORK.missing,
        "testbed_clip": REAL_CLIP.missing,
        "paper_facts": PAPER_FACTS.missing,
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """What was imported so far stays: collections of garbage then look at what tests have made alone.

    Each would otherwise go through the millions of objects of torch, which takes half a second.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # modules are to be cleared when the process ends; Triton complains of those that are not


@pytest.fixture(autouse=True)
def seeds(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers in every run, alone and among others."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What a command sets for its process ends with the test that called it."""
    before = set(os.environ)
    yield
    for name in os.environ.keys() - before:
        if name.startswith("CUBLAS"):
            del os.environ[name]


@pytest.fixture
def own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten with it."""
    ramen.list_methods()  # so that all others are there before
    _registry._load_own_methods()
    monkeypatch.setattr(_registry, "_METHODS", dict(_registry._METHODS))


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessTeam]:
    """Processes for tests of groups, which all share them."""
    team = ProcessTeam(TEAM_SIZE, tmp_path_factory.mktemp("team"))
    yield team
    team.close()


@pytest.fixture(params=["vit", "resnet"])
def tower_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def classifier(tower_kind: str) -> ramen.ZeroShotClassifier:
    return testing.small_classifier(tower_kind)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a small CLIP that open_clip can build: ViT image tower and a real text tower."""
    return add_tiny_model(tmp_path_factory.mktemp("configs"), "tiny-vit", TINY_VIT)
