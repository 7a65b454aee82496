"""``make fuzz``: looks for inputs that fail, with coverage as its guide.

    PYTHONPATH=benchmarks python -m tests.fuzz.run TARGET SECONDS [FOLDER]

Inputs that reach something new are kept in FOLDER (``.fuzz/TARGET``), from which the next run resumes.
One that fails ends the run and is written there as ``crash-...``. It needs ``pip install atheris``.
"""

import logging
import os
import sys
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ramen.serve", "ramen.images", "PIL"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz one target."""
    name, seconds, *folder = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    target, kept = TARGETS[name], Path(folder[0] if folder else f".fuzz/{name}")
    kept.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.corpus()):
        (kept / f"start-{number}").write_bytes(data)
    end = time.monotonic() + float(seconds)

    def read(data: bytes) -> None:
        if time.monotonic() > end:
            print(f"{name}: nothing failed in {seconds} seconds", flush=True)
            os._exit(0)  # libFuzzer's own end waits for threads that have no turn any more
        target.read(data)

    options = [f"-artifact_prefix={kept}/", "-timeout=10", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], str(kept), *options], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
