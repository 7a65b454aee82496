"""One loaded model for all tests of the runner that ask for it: loading takes longer than running."""

import pytest

from ramen.data.drawings.shapes import OBJECTS
from ramen.experiments.run import resources
from ramen.experiments.run.execute import run_experiments
from ramen.models.by_name import load_model
from tests.experiments.run.tiny_runs import planned


@pytest.fixture(scope="module")
def classifier():
    return load_model("tiny", OBJECTS)


@pytest.fixture(scope="module")
def one_classifier(classifier):
    """All runs of a file share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "load_model", lambda *_, **__: classifier)
        yield


@pytest.fixture(scope="module")
def mixed(one_classifier, tmp_path_factory):
    out = tmp_path_factory.mktemp("mixed")
    return out, dict(zip(["ramen", "tent"], run_experiments(planned("ramen", "tent"), out), strict=True))
