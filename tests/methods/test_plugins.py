"""Methods of files and of other packages; what is registered here is registered in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ramen
from ramen.methods._registry import load_plugins

METHOD = '''
import ramen

@ramen.register(ramen.MethodInfo("{name}", "Theirs", "", "none", "nothing", "one pass", False, 1, 0))
class Theirs(ramen.Method):
    """Theirs."""
'''


def in_a_process(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )


def install(folder: Path, package: str, content: str) -> None:
    """A package with an entry point, as pip leaves it."""
    (folder / f"{package}.py").write_text(content)
    facts = folder / f"{package}-1.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (facts / "entry_points.txt").write_text(f"[ramen.methods]\n{package} = {package}\n")
    (facts / "RECORD").write_text(f"{package}.py,,\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import nothing_like_it\n", "ModuleNotFoundError: No module named 'nothing_like_it' (line 1)"),
        ("x = 1\nx = (\n", "line 2"),
        ("\n\nraise SystemExit(3)\n", "SystemExit: 3 (line 3)"),
        ("x = 1\n", "registers no method"),
        (METHOD.format(name="tent"), "name 'tent' is taken by ramen.methods.tent.Tent"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str, said: str) -> None:
    before, file = ramen.list_methods(), tmp_path / "mine.py"
    file.write_text(content)
    with pytest.raises(ValueError, match="--import") as error:
        load_plugins([str(file)])
    assert str(file) in str(error.value)
    assert said in str(error.value)
    assert ramen.list_methods() == before


def test_what_a_failing_file_has_registered_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(METHOD.format(name="half") + "\n1 / 0\n")
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        load_plugins([str(file)])
    assert "half" not in ramen.list_methods()


@pytest.mark.parametrize("name", ["nothing.py", "no_such_module", "a-b", "json"])
def test_what_is_not_there_or_has_no_methods(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"--import.*{name}"):
        load_plugins([name])


def test_a_file_in_place_of_a_module(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(METHOD.format(name="mine"))
    with pytest.raises(ValueError, match=r"--import.*mine\.py"):
        load_plugins(["mine"])


def test_installed_packages_bring_methods(tmp_path: Path) -> None:
    install(tmp_path, "theirs", METHOD.format(name="theirs"))
    install(tmp_path, "broken", "raise OSError('no disk')")
    done = in_a_process(
        "import json, ramen\n"
        "print(json.dumps([ramen.list_methods(), dict(ramen.describe('theirs').origin)]))\n"
        "print(ramen.describe('theirs'))\n"
        "try:\n    ramen.describe('their')\nexcept ValueError as error:\n    print(error)",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    first, *page = done.stdout.splitlines()
    names, origin = json.loads(first)
    assert set(names) > {"theirs", "ramen"}
    assert origin == {"distribution": "theirs", "version": "1.2"}
    assert "  comes from: theirs 1.2" in page
    assert "OSError: no disk" in page[-1]
    assert done.stderr.count("the methods of broken") == 1


def test_modules_are_of_a_package_or_a_file(tmp_path: Path) -> None:
    install(tmp_path, "theirs", METHOD.format(name="theirs"))
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "__init__.py").write_text("import loose.one")
    (tmp_path / "loose" / "one.py").write_text(METHOD.format(name="one"))
    (tmp_path / "file.py").write_text(METHOD.format(name="two"))
    (tmp_path / "sub").mkdir()
    done = in_a_process(
        "import os, ramen\n"
        "class Own(ramen.Method): ...\n"
        "def enter(name): ramen.register(ramen.MethodInfo(name, 'Own', '', '', '', '', False, 1, 0))(Own)\n"
        "try: enter('tent')\n"  # before anybody has asked for the methods of the library
        "except ValueError as error: print(error)\n"
        "from ramen.methods._registry import load_plugins\n"
        "file = os.path.abspath('file.py'); os.chdir('sub')\n"
        "for _ in range(2): load_plugins(['theirs', 'loose', file])\n"
        "for name in ('theirs', 'one', 'two', 'tent'): print(ramen.describe(name).source)\n"
        "enter('own')\n"
        "print(ramen.describe('own'))",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    taken, theirs, one, two, tent, *page = done.stdout.splitlines()
    assert taken == "name 'tent' is taken by ramen.methods.tent.Tent"
    assert (theirs, tent) == ("theirs 1.2", "None")
    assert one.startswith("one.py sha256:")
    assert two.startswith("file.py sha256:")
    assert "  comes from: __main__" in page
