"""One loaded model for all tests of the runner that ask for it: loading takes longer than running."""

import pytest

from ramen.data.drawings.shapes import OBJECTS
from ramen.experiments import run
from ramen.experiments.workers import run_all
from ramen.methods import _registry
from ramen.models.names import load_model
from ramen.utils.files import forget_file
from tests.experiments.tiny_runs import ODD_METHODS, planned


@pytest.fixture(scope="module", autouse=True)
def own_methods_alone():
    """Methods that a file's tests bring are not those of the next file."""
    yield
    for name in set(_registry._METHODS) - set(_registry.own_records()):
        del _registry._METHODS[name]
    forget_file(ODD_METHODS)


@pytest.fixture(scope="module")
def classifier():
    return load_model("tiny", OBJECTS)


@pytest.fixture(scope="module")
def one_classifier(classifier):
    """All runs of a file share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "load_model", lambda *_, **__: classifier)
        yield


@pytest.fixture(scope="module")
def mixed(one_classifier, tmp_path_factory):
    out = tmp_path_factory.mktemp("mixed")
    return out, dict(zip(["ramen", "tent"], run_all(planned("ramen", "tent"), out), strict=True))
