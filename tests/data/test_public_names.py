"""``ramen.data``: its public names, and that importing it stays cheap."""

import importlib
import pkgutil
import subprocess
import sys

import ramen
from ramen import data


def test_a_data_set_from_loading_to_streaming():
    images = ramen.data.load("tiny", domains=["fog"], pictures=3)
    assert isinstance(images, data.Dataset)
    stream = ramen.data.make_stream("single", images, seed=0)
    assert isinstance(stream, data.Stream)
    assert stream.read(slice(0, 3)).shape == (3, 3, 32, 32)
    assert ramen.data.describe("tiny").classes == len(images.classes)


def test_no_module_hides_a_public_name():
    """A module becomes an attribute of its package once it is imported."""
    assert all(getattr(data, name) is not None for name in data.__all__)
    modules = {module.name for module in pkgutil.iter_modules(data.__path__)}
    assert not modules & set(data.__all__)
    importlib.import_module("ramen.data.downloads")
    assert callable(data.download)


def test_importing_it_is_cheap():
    code = "import sys, ramen.data; print([m for m in ('torch', 'numpy', 'PIL') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"[]\n"
