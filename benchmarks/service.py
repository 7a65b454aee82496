"""Whether the service keeps what it promises, how fast it is, and how it does beside others.

    python benchmarks/service.py                                     # all checks in their short form
    python benchmarks/service.py --checks R1 R7 speed --out service.json
    python benchmarks/service.py --full                              # the long forms: hours
    python benchmarks/service.py --checks host --old FOLDER          # beside another checkout, by turns
    python benchmarks/service.py --checks speed --model random:ViT-B-16 --device cuda --dtype float16 \
        --max-batch 100 --processes 4 --seconds 20 --out speed.json  # on a GPU; needs fastapi, uvicorn,
                                                                     # python-multipart, prometheus-client

Each check starts servers of its own (`ramen serve` on a free port), or an engine in this process. Every row
has a target and whether it was met. Times are ratios within one run where they can be: a server and its
clients share the machine, so on few cores the clients take their part. The exit code is 1 if a row is missed
and --strict is given. Needs Linux.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from service_checks.options import CheckOptions
from service_checks.report import Findings, missed, print_findings

from ramen.utils import files

CHECKS = {  # names and where they are
    "R1": "crashes",
    "R3": "restarts",
    "R5": "batches",
    "R6": "memory",
    "R7": "overload",
    "R8": "concurrency",
    "R10": "hostile",
    "R13": "failing",
    "R15": "tenants",
    "R16": "soak",
    "speed": "speed",
    "costs": "costs",
    "comparison": "comparison",
    "host": "host",
}
_SETTINGS = (
    *("model", "device", "dtype", "max_batch", "seconds", "full", "processes"),
    *("http_processes", "profile", "old"),
)
_PACKAGES = (
    "ramen-tta",
    "torch",
    "fastapi",
    "starlette",
    "uvicorn",
    "pydantic",
    "open-clip-torch",
    "litserve",
    "numpy",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checks", nargs="+", choices=[*CHECKS, "all"], default=["all"])
    parser.add_argument("--model", default="tiny", help="a form that `ramen models list` shows")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a load that has no length of its own")
    parser.add_argument("--full", action="store_true", help="the long forms")
    parser.add_argument("--processes", type=int, default=1, help="that send load in speed and comparison")
    parser.add_argument(
        "--http-processes", type=int, help="of servers; by default none on a CPU, and 2 or 4 with a GPU"
    )
    parser.add_argument(
        "--profile", action="store_true", help="servers also say what their threads did; costs some speed"
    )
    parser.add_argument("--old", type=Path, help="another checkout, measured by turns with this one in host")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    names = list(CHECKS) if "all" in options.checks else list(dict.fromkeys(options.checks))
    console = Console()
    findings = []
    for name in names:
        findings.append(check(name, options, console))
        if options.out is not None:  # after each: an interrupted run keeps what it has
            write(options, findings)
    rows = missed(findings)
    total = sum(row.passed is not None for found in findings for row in found.rows)
    console.print(f"{total - len(rows)} of {total} targets met")
    for row in rows:
        console.print(
            f"  missed: {row.check}, {row.what}: {row.measured}, target {row.target}", highlight=False
        )
    if rows and options.strict:
        raise SystemExit(1)


def check(name: str, options: argparse.Namespace, console: Console) -> Findings:
    """Run a check in a folder of its own; one that fails to run is a row that is missed."""
    module = importlib.import_module(f"service_checks.{CHECKS[name]}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ramen-service-") as folder:
        given = CheckOptions(Path(folder), **{name: getattr(options, name) for name in _SETTINGS})
        try:
            found: Findings = module.run(given)
        except Exception as error:
            console.print_exception()
            found = Findings(name)
            found.expect("the check", "runs", False, f"{type(error).__name__}: {error}"[:500])
    found.details["check_seconds"] = round(time.monotonic() - start, 1)
    print_findings(found, module.TITLE, console)
    return found


def write(options: argparse.Namespace, findings: list[Findings]) -> None:
    """Write what was found so far."""
    results: dict[str, Any] = {
        "settings": {name: getattr(options, name) for name in _SETTINGS if name != "old"},
        "hardware": {
            "cpu": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "gpu": torch.cuda.get_device_name() if options.device.startswith("cuda") else None,
        },
        "versions": {"python": platform.python_version()} | _versions(),
        "missed": len(missed(findings)),
        "checks": {found.check: found.to_dict() for found in findings},
    }
    files.write_text(options.out, json.dumps(_finite(results), indent=1) + "\n")


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _finite(value: Any) -> Any:
    """The same with None for what is not a number, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


if __name__ == "__main__":
    main()
