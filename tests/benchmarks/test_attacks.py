"""The benchmark of attacks, briefly: the server lives, and others are answered."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


def test_a_server_is_attacked_and_lives(tmp_path: Path) -> None:
    out, attacks = tmp_path / "found.json", ["many_headers", "slow_bodies", "typing_errors"]
    command = [sys.executable, "benchmarks/attacks.py", "--seconds", "0.5", "--out", str(out), "--attacks"]
    assert subprocess.run([*command, *attacks], check=False).returncode in (0, 1)  # 1: slower than wanted
    found = json.loads(out.read_text())
    assert found["alive"]
    rows = found["rows"]
    assert list(rows) == ["nothing", *attacks]
    assert all(row["healthz"]["lost"] == row["tenant"]["lost"] == 0 for row in rows.values())
    assert set(rows["many_headers"]["outcomes"]) <= {"431", "closed"}
    assert rows["slow_bodies"]["outcomes"]["held at the end"] > 0
    assert "500" not in rows["slow_bodies"]["outcomes"]
    assert set(rows["typing_errors"]["outcomes"]) == {"422"}
