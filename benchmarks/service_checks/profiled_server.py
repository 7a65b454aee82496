"""``ramen serve`` that looks at its own threads: what they do, and how much CPU time each kind takes.

The environment variable RAMEN_PROFILE names a folder. What the file ``window`` there says names what is
measured from then on; when that changes, ``profile.json`` gets what was seen until then. Looks are taken
whenever this thread gets its turn, so that waiting for the interpreter's lock is part of what functions seem
to take. CPU times are those of the kernel.
"""

import json
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from ramen.cli import app
from ramen.utils import files

_PAUSE = 0.01  # seconds between two looks
_MOST = 40  # functions per kind of thread
_TICKS = os.sysconf("SC_CLK_TCK")


class _Window:
    """What was seen while one thing was measured."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.looks = 0
        self.inclusive: dict[str, Counter[str]] = {}
        self.leaves: dict[str, Counter[str]] = {}
        self.cpu = cpu_seconds()

    def look(self) -> None:
        """Add what all threads do now."""
        self.looks += 1
        names = {thread.ident: _kind(thread.name) for thread in threading.enumerate()}
        own = threading.get_ident()
        for ident, top in sys._current_frames().items():
            if ident == own:
                continue
            kind = names.get(ident, "unknown")
            stack = _functions(top)
            self.leaves.setdefault(kind, Counter())[f"{stack[0]}:{top.f_lineno}"] += 1
            self.inclusive.setdefault(kind, Counter()).update(set(stack))

    def to_dict(self) -> dict[str, Any]:
        """Seconds of CPU per kind of thread, and shares of the looks in which a function was there."""
        spent = {kind: round(seconds - self.cpu.get(kind, 0.0), 3) for kind, seconds in cpu_seconds().items()}
        return {
            "seconds": round(time.monotonic() - self.started, 3),
            "looks": self.looks,
            "cpu_seconds": spent,
            "inclusive": self._shares(self.inclusive),
            "leaves": self._shares(self.leaves),
        }

    def _shares(self, counted: dict[str, Counter[str]]) -> dict[str, dict[str, float]]:
        looks = max(self.looks, 1)
        return {
            kind: {name: round(count / looks, 4) for name, count in counter.most_common(_MOST)}
            for kind, counter in counted.items()
        }


def _kind(name: str) -> str:
    """Threads that do the same work count together."""
    return re.sub(r"[\d_-]+$", "", name)


def _functions(frame: FrameType | None) -> list[str]:
    """From the innermost outwards."""
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_qualname}")
        frame = frame.f_back
    return found


def cpu_seconds() -> dict[str, float]:
    """CPU time so far by kind of thread, that of the kernel included; threads outside Python are "native"."""
    names = {thread.native_id: _kind(thread.name) for thread in threading.enumerate()}
    spent: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        name = names.get(int(task.name), "native")
        spent[name] = spent.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS
    return spent


def _watch(folder: Path) -> None:
    windows: dict[str, Any] = {}
    name, window = "", _Window()
    while True:
        time.sleep(_PAUSE)
        try:
            wanted = (folder / "window").read_text()
        except OSError:
            wanted = ""
        if wanted != name:
            if name:
                windows[name] = window.to_dict()
                files.write_text(folder / "profile.json", json.dumps(windows))
            name, window = wanted, _Window()
        elif name:
            window.look()


if __name__ == "__main__":
    watcher = threading.Thread(target=_watch, args=(Path(os.environ["RAMEN_PROFILE"]),), daemon=True)
    watcher.start()
    app()
