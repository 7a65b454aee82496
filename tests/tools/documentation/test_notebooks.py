"""Notebooks: run by a fresh Python; a cell that fails stops the build."""

from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

from tools.documentation import notebooks

TEXT = """# %% [markdown]
# # A title
#
# Some text.

# %%
print("out" + "put")

# %%
import base64
from IPython.display import Image, Markdown
Image(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="))

# %%
Markdown("**bold**")
"""


def test_outputs_become_part_of_the_page(tmp_path: Path) -> None:
    folder = tmp_path / notebooks.FOLDER
    folder.mkdir(parents=True)
    (folder / "one.py").write_text(TEXT)
    assert notebooks.paths(tmp_path) == {"A title": "notebooks/one.md"}
    made = notebooks.pages(tmp_path)
    page = str(made["notebooks/one.md"])
    assert page.startswith("# A title")
    assert "~~~~text\noutput\n~~~~" in page
    assert "**bold**" in page
    (image,) = [path for path in made if path.endswith(".png")]
    assert f"]({Path(image).name})" in page
    assert made[image][:4] == b"\x89PNG"
    assert "notebooks/one.ipynb" in made


def test_a_cell_that_fails_stops_the_build(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("# %%\nvalue = 1\n\n# %%\nassert value == 2, 'value is not two'\n")
    with pytest.raises(PluginError, match=r"bad.py failed:[\s\S]*value is not two"):
        notebooks.run(path)


def test_a_notebook_needs_a_title(tmp_path: Path) -> None:
    folder = tmp_path / notebooks.FOLDER
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("# %%\nx = 1\n")
    with pytest.raises(PluginError, match=r"one.py has no title"):
        notebooks.paths(tmp_path)
