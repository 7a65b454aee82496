"""Commands that compute nothing load neither torch nor pandas, which take seconds."""

import json
import subprocess
import sys

import pytest

COMMANDS = {
    "--help": 0,
    "--version": 0,
    "run --help": 0,
    "serve --help": 0,
    "token --help": 0,
    "methods": 0,
    "methods --json": 0,
    "describe": 0,
    "describe ramen": 0,
    "data list": 0,
    "data list --json": 0,
    # mistakes
    "nothing": 2,
    "describe tnet": 2,
    "run --batch 0": 2,
    "run --nothing": 2,
    "run --data nothing": 2,
    "run --method tnet": 2,
    "run --set tnet.lr=1": 2,
    "run --set learning=1": 2,
    "run --protocol nothing": 2,
    "run --preset nothing": 2,
    "run --templates nothing": 2,
    "run --dtype float8": 2,
    "run --seed 0 --seeds 2": 2,
    "compare": 2,
    "compare --run --table nothing": 2,
    "compare --run --format nothing": 2,
    "sweep --vary nothing=1": 2,
    "run --tuned nothing.json": 2,
    "tune --help": 0,
    "tune --domain fog": 2,
    "tune --spaces nothing.toml": 2,
    "tune --method tnet": 2,
    "reproduce --help": 0,
    "reproduce --table 1": 2,
    "reproduce --table 5 --figure 5": 2,
    "serve": 2,
    "serve --no-auth --host 0.0.0.0": 2,
    "token list --file nothing": 2,
    "token create --file nothing --name a --scope all": 2,
    "data verify nothing --root .": 2,
    "data make nothing --from . --out .": 2,
}

# Runs all commands in one process in which these cannot be loaded, and says which of them tried.
PROGRAM = """
import contextlib, io, json, sys

tried = []

class NoneOfThese:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "pandas"):
            tried.append(name)
            raise ImportError(f"{name} was asked for")

sys.meta_path.insert(0, NoneOfThese())
from ramen.cli import app

results = {}
for command in json.loads(sys.argv[1]):
    tried.clear()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            app(command.split(), prog_name="ramen")
        except SystemExit as exit:
            code = exit.code
        except ImportError as error:
            code = str(error)
    results[command] = [code, bool(tried), errors.getvalue()]
json.dump(results, sys.stdout)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, bool, str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(COMMANDS))],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("light"),
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_light_command_loads_nothing_heavy(outcomes, command: str) -> None:
    code, loaded, errors = outcomes[command]
    assert (code, loaded) == (COMMANDS[command], False), errors
