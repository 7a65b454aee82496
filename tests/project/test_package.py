"""The package as a whole: its public names, what importing it costs, what its files may say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ramen

ROOT = Path(__file__).resolve().parents[2]


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_importing_it_loads_python_alone() -> None:
    """Nothing that is not part of Python, so that it takes milliseconds."""
    code = (
        "import sys; before = set(sys.modules); import ramen; "
        "tops = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(tops - set(sys.stdlib_module_names)))"
    )
    assert python(code) == "['ramen']"


def test_using_a_method_does_not_load_open_clip() -> None:
    code = (
        "import sys; from ramen.methods._registry import get_method; get_method('tent'); "
        "print('torch' in sys.modules, 'open_clip' in sys.modules)"
    )
    assert python(code) == "True False"


@pytest.mark.parametrize("name", ramen.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(ramen, name) is not None
    assert name in dir(ramen)


def test_unknown_public_names() -> None:
    with pytest.raises(AttributeError, match="module 'ramen' has no attribute 'nothing'"):
        _ = ramen.nothing


def test_no_pickle_is_loaded() -> None:
    """``torch.load`` has ``weights_only=True``; one file reads pickles, and imports nothing they name."""
    sources = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
    found = [
        path.name for path, source in sources.items() if re.search(r"\b(import|from) c?[pP]ickle", source)
    ]
    assert found == ["pickles.py"]
    calls = [call for source in sources.values() for call in re.findall(r"torch\.load\([^)]*\)", source)]
    assert calls
    assert not [call for call in calls if "weights_only=True" not in call]


def test_the_readmes_example_runs(tmp_path: Path, tiny_model: str) -> None:
    """The first example of the README, with a model that needs no download."""
    from PIL import Image

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    image = tmp_path / "image.png"
    Image.new("RGB", (40, 30), "red").save(image)
    code = (
        blocks[0]
        .replace('"ViT-B-16", "openai"', f'"{tiny_model}", None')
        .replace('"photo.jpg"', f'"{image}"')
    )
    assert tiny_model in code
    assert str(image) in code
    names: dict[str, object] = {}
    exec(code, names)
    assert names["out"].logits.shape == (1, 3)


def test_one_version_everywhere() -> None:
    version = ramen.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
