"""``ramen.data``: its public names, and that importing it stays cheap."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import ramen
from ramen import data


@pytest.mark.parametrize("name", data.__all__)
def test_public_names_exist(name):
    assert getattr(data, name) is not None
    assert name in dir(data)


def test_names_work_without_importing_a_module_first():
    code = "import ramen; stream = ramen.data.make_stream('mixed', [[0, 1]]); print(len(stream))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"2\n"


def test_a_data_set_from_loading_to_streaming():
    images = ramen.data.load("tiny", domains=["fog"], pictures=3)
    assert isinstance(images, data.Dataset)
    stream = ramen.data.make_stream("single", images, seed=0)
    assert isinstance(stream, data.Stream)
    assert stream.read(slice(0, 3)).shape == (3, 3, 32, 32)
    assert "tiny" in ramen.data.list_datasets()
    assert ramen.data.describe("tiny").classes == len(images.classes)


def test_no_module_hides_a_public_name():
    """A module becomes an attribute of its package once it is imported."""
    modules = {module.name for module in pkgutil.iter_modules(data.__path__)}
    assert not modules & set(data.__all__)
    importlib.import_module("ramen.data.verification")
    importlib.import_module("ramen.data.downloads")
    assert callable(data.verify)
    assert callable(data.download)


def test_importing_it_is_cheap():
    code = "import sys, ramen.data; print([m for m in ('torch', 'numpy', 'PIL') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"[]\n"


def test_unknown_names():
    with pytest.raises(AttributeError, match=r"module 'ramen\.data' has no attribute 'nothing'"):
        _ = data.nothing
