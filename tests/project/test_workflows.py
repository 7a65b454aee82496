"""What a code host runs: valid workflows, pinned actions, commands of the Makefile and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_commands_are_the_makefiles(workflow: Path) -> None:
    text = workflow.read_text()
    actions, commands = re.findall(r"uses: (.+)", text), re.findall(r"run: (.+)", text)
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+(\.\d+)*", action), action
    for command in commands:
        found = re.fullmatch(r'make ([a-z-]+)( TESTS="([^"]*)")?', command)
        assert found, command
        assert found[1] in TARGETS, command
        for path in (found[3] or "").split():
            assert (ROOT / path).is_dir(), command


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.dependabot", [ROOT / ".github" / "dependabot.yml"]),
    ],
)
def test_the_code_host_understands_them(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
