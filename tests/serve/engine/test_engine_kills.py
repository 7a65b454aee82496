"""An engine that is killed loses at most what its stores have not promised to keep."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.engine.engines import ask, engine

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("save_every", ["batch", "4"])
def test_killed_while_it_answers(clf, tmp_path: Path, save_every: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.serve.engine.killed_engine", str(tmp_path), save_every]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        answered = 0
        for line in process.stdout:
            answered = int(line)
            if answered == 10:
                process.kill()
                break
        answered = max([answered, *map(int, process.stdout.read().split())])
    with engine(clf, state=str(tmp_path)) as where:
        for name in ("a", "b"):
            seen = ask(where, name, 1)[0].result.state_version - 1
            # of the last batches, one may be on its way to the disk, and one may be about to be written
            lost = 2 if save_every == "batch" else 2 * int(save_every)
            assert answered - lost <= seen <= answered + 1
            assert where.stream(name).images == seen + 1
