"""The loop of docs/scaling.md, in processes as torchrun starts them: stopped, and resumed by one process."""

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.helpers.drawing_files import write_drawings

PAGE = Path(__file__).parents[2] / "docs/scaling.md"
MODEL = 'ramen.ZeroShotClassifier.from_open_clip("ViT-B-16", "openai", classes=["cat", "dog"], device=device)'


def script() -> str:
    """The code of the page, with a small model, small batches, and a way to stop it."""
    blocks = PAGE.read_text(encoding="utf-8").split("```python\n")
    code = next(block for block in blocks if "PER_PROCESS" in block).split("```")[0]
    stop = '    os.environ["STOP"] == str(number) and os._exit(9)\n'
    for there, here in {
        MODEL: "__import__('ramen.testing').testing.small_classifier()",
        "PER_PROCESS, SAVE_EVERY, STATE, OUT = 64, 20": "PER_PROCESS, SAVE_EVERY, STATE, OUT = 2, 2",
        "    out = method.predict": f"{stop}    out = method.predict",
    }.items():
        assert there in code
        code = code.replace(there, here)
    return code


def run(folder: Path, processes: int, stop: str = "") -> list[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    common = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script()],
            cwd=folder,
            env={**common, "WORLD_SIZE": str(processes), "RANK": str(rank), "STOP": stop},
            stderr=subprocess.DEVNULL if stop else None,
        )
        for rank in range(processes)
    ]
    return [process.wait(120) for process in started]


def test_the_loop_resumes_in_another_number_of_processes(tmp_path: Path) -> None:
    photos = write_drawings(tmp_path / "photos", per_domain=2)[:15]
    photos[4].write_bytes(b"no image")
    for path in (tmp_path / "photos").iterdir():
        if path not in photos:
            path.unlink()
    assert run(tmp_path, 2, stop="4") == [9, 9]  # the third batch is written, and not in the state
    assert len(list((tmp_path / "labels").iterdir())) == 6
    assert run(tmp_path, 1) == [0]
    rows = [row for path in (tmp_path / "labels").iterdir() for row in csv.reader(path.open(newline=""))]
    labels = dict(rows)
    assert len(rows) == len(labels) == len(photos)
    assert set(labels) == {f"photos/{path.name}" for path in photos}
    assert {path for path, label in labels.items() if not label} == {"photos/004.png"}
