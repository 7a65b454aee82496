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
import os
import tempfile
import time
from pathlib import Path

from measuring import command, write
from rich.console import Console
from service_checks.options import CheckOptions
from service_checks.report import Findings, missed

from ramen.experiments.render import print_tables

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
_SETTINGS = ("model", "device", "dtype", "max_batch", "seconds", "full", "processes", "workers", "old")
_PACKAGES = ("fastapi", "starlette", "uvicorn", "pydantic", "litserve")


def main() -> None:
    parser = command(__doc__, model="tiny", max_batch=32, seconds=10.0, processes=1, workers=int)
    parser.add_argument("--checks", nargs="+", choices=[*CHECKS, "all"], default=["all"])
    parser.add_argument("--full", action="store_true", help="the long forms")
    parser.add_argument("--old", type=Path, help="another checkout, measured by turns with this one in host")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    names = list(CHECKS) if "all" in options.checks else list(dict.fromkeys(options.checks))
    settings = {name: getattr(options, name) for name in _SETTINGS}
    console, findings = Console(), list[Findings]()
    for name in names:
        findings.append(check(name, options, console))
        results = {
            "settings": {name: value for name, value in settings.items() if name != "old"},
            "cores": len(os.sched_getaffinity(0)),
            "packages": {package: _version(package) for package in _PACKAGES},
            "missed": len(missed(findings)),
            "checks": {found.check: found.to_dict() for found in findings},
        }
        write(options, results)  # after each: an interrupted run keeps what it has
    total = sum(row.passed is not None for found in findings for row in found.rows)
    rows = missed(findings)
    print(f"{total - len(rows)} of {total} targets met")
    for row in rows:
        print(f"  missed: {row.check}, {row.what}: {row.measured}, target {row.target}")
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
    print_tables(console, [found.table(module.TITLE)])
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
