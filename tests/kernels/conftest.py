"""Tests marked ``interpreted`` run in a process whose Triton interprets programs, and are reported here."""

from pathlib import Path

import pytest

from ramen import kernels
from ramen.kernels import sums
from tests.kernels import interpreter

_OUTCOME = pytest.StashKey[interpreter.Outcome]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interpreted: runs Triton programs on the CPU, in its interpreter")


@pytest.fixture(scope="session")
def interpreted_tests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> interpreter.InterpretedTests:
    names = [item.nodeid for item in request.session.items if item.get_closest_marker("interpreted")]
    own_folder = tmp_path_factory.getbasetemp()  # for a worker: in the folder of the whole run
    folder: Path = own_folder.parent if hasattr(request.config, "workerinput") else own_folder
    processes = min(interpreter.MOST_PROCESSES, interpreter.workers())
    return interpreter.InterpretedTests(names, request.config.rootpath, folder, processes)


@pytest.fixture(autouse=True)
def outcome_elsewhere(request: pytest.FixtureRequest) -> None:
    """What the interpreter made of this test, if it needs one."""
    if not request.node.get_closest_marker("interpreted") or interpreter.is_interpreting():
        return
    if not kernels.available():
        pytest.skip("Triton is not installed")
    tests = request.getfixturevalue("interpreted_tests")
    request.node.stash[_OUTCOME] = tests.outcome(request.node.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In place of the test's own code, its outcome in the other process."""
    if _OUTCOME not in pyfuncitem.stash:
        return None
    pyfuncitem.stash[_OUTCOME].apply()
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    interpreter.write_report(report)


@pytest.fixture
def triton_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums launch their programs on the CPU as well, which only the interpreter can do."""
    monkeypatch.setattr(sums, "uses_triton", lambda device: True)
