"""Notebooks: Python files in jupytext's percent format, run when the site is built."""

import base64
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from mkdocs.exceptions import PluginError
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

FOLDER = "docs/notebooks"
SECONDS = 600  # for one cell
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # progress bars of other packages want widgets here
}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of tracebacks


def sources(root: Path) -> list[Path]:
    """The notebooks, in the order of their names."""
    return sorted((root / FOLDER).glob("*.py"))


def paths(root: Path) -> dict[str, str]:
    """The pages by title."""
    return {_title(path): f"notebooks/{path.stem}.md" for path in sources(root)}


def pages(root: Path, *, execute: bool = True) -> dict[str, str | bytes]:
    """Run every notebook; its page, its images and the notebook as it was run, by places on the site."""
    made: dict[str, str | bytes] = {}
    for path in sources(root):
        notebook = run(path) if execute else jupytext.read(path)
        made[f"notebooks/{path.stem}.ipynb"] = nbformat.writes(notebook)
        made |= rendered(notebook, path.stem)
    return made


def run(path: Path) -> Any:
    """The notebook with the outputs of its cells, run by a fresh Python in an empty folder."""
    notebook = jupytext.read(path)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            # a socket in the folder: no port on the network
            config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"}),
        )
        try:
            client.execute(env={**os.environ, **ENVIRONMENT})
        except CellExecutionError as error:
            raise PluginError(f"{path.name} failed:\n{_COLOURS.sub('', str(error))}") from None
    return notebook


def rendered(notebook: Any, name: str) -> dict[str, str | bytes]:
    """A notebook as a page of Markdown, with the images of its outputs."""
    files: dict[str, str | bytes] = {}
    parts: list[str] = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"~~~~python\n{cell.source}\n~~~~")
        texts: list[str] = []
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                image = f"{name}_{number}_{len(files)}.png"
                files[f"notebooks/{image}"] = base64.b64decode(data["image/png"])
                texts.append(f"![Output of the cell above]({image})")
            elif "text/markdown" in data:
                texts.append(data["text/markdown"])
            else:
                texts.append(_as_text(_COLOURS.sub("", output.get("text") or data.get("text/plain", ""))))
        parts += [text for text in texts if text]
    first, *rest = parts
    note = (
        f"This page is a notebook that was run when the site was built: [the file]({name}.py), "
        f"[with its outputs, for Jupyter]({name}.ipynb)."
    )
    return {f"notebooks/{name}.md": "\n\n".join([first, note, *rest]) + "\n", **files}


def _as_text(text: str) -> str:
    return f"~~~~text\n{text.rstrip()}\n~~~~" if text.strip() else ""


def _title(path: Path) -> str:
    for cell in jupytext.read(path).cells:
        for line in cell.source.splitlines():
            if line.startswith("# "):
                return str(line.removeprefix("# "))
    raise PluginError(f"{path.name} has no title: its first cell must begin with '# '")
