"""Every figure that the pages cite from a GPU, the code of an older commit and this one by turns.

    python benchmarks/gpu.py --old COMMIT                           # again, until nothing is owed
    python benchmarks/gpu.py --old FOLDER --piece speed --step b16 --step b32 --minutes 9     # a part
    python benchmarks/gpu.py --old FOLDER --rehearse --device cpu   # in small: figures mean nothing
    python benchmarks/gpu.py --show results/gpu/speed.json          # old beside new

Each checkout runs its own benchmarks with its own code; the older one may be a folder without a history. A
piece is a list of steps, commands of at most nine minutes each. ``--minutes`` ends an invocation, and the
next one skips what the folder has; what another source measured does not count. A piece becomes one JSON file
with GPU, versions and commits. Whatever else is on PYTHONPATH stays there. The exit code is 3 if figures are
owed.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
STEP_SECONDS = 540.0  # the longest that a step may take
FIRST_SECONDS = 60.0  # assumed of a step that was never run
SIDES = ("old", "new")
METHOD_GROUPS = (  # a step each; TPT needs a text tower, which random weights do not have
    ("ramen", "tent", "entmin", "ensemble", "clip", "tda", "dmn", "t3a"),
    ("lame", "stata", "onzeta", "oga", "note", "sar", "eata", "deyo"),
    ("rotta", "roid", "cotta", "moetta", "mint", "batclip", "clipot"),
    ("mta", "tps", "zero", "cliptta", "clipartt", "watt"),
)
TOWERS = (
    *("ViT-B-16", "ViT-B-32", "ViT-B-16-SigLIP", "EVA02-B-16", "RN50", "RN101", "torchvision:resnet50"),
    *("timm:vit_base_patch16_clip_224", "timm:deit_base_patch16_224", "timm:vit_small_patch14_dinov2@224"),
    *(
        "timm:vit_base_patch16_siglip_224",
        "timm:resnet50",
        "timm:tf_efficientnet_lite0",
        "timm:convnext_tiny",
    ),
    *("timm:swin_tiny_patch4_window7_224", "timm:tiny_vit_21m_224"),
    *("transformers:CLIPVisionModelWithProjection", "transformers:SiglipVisionModel"),
)
CHECKS = ("R1", "R3", "R5", "R6", "R7", "R8", "R10", "R13", "R15")
_WHERE = "--device {device} --dtype {dtype}"
_SMALL = "ViT-S-32-alt --classes 3 --batch 2 --repeats 1"
_SMALLER = f"{_SMALL} --rounds 1 --capacity 4 --topk 2"
_RUN = f"-m ramen run --method ramen --method tent --json --out {{folder}} {_WHERE}"


@dataclass(frozen=True)
class Step:
    """A command for each side.

    Attributes:
        command: Words after ``python``. ``{out}`` is the JSON file that it writes; else it prints JSON.
        small: The command of a rehearsal; None if the rehearsal of another step of the piece is enough.
        sides: Whose figures are owed.
    """

    command: str
    small: str | None = None
    sides: tuple[str, ...] = SIDES


def speed(options: str, small: str | None = None) -> Step:
    start = f"benchmarks/speed.py {_WHERE} --out {{out}}"
    return Step(f"{start} {options}", small and f"{start} {small}")


def group(processes: int, images: int) -> str:
    return f"-m torch.distributed.run --standalone --nproc-per-node {processes} {_RUN} --per-domain {images}"


def pieces(gpus: int, testbed: Path) -> dict[str, dict[str, Step]]:
    """All that is owed: the steps of each piece by name."""
    towers = f"benchmarks/towers.py {_WHERE} --out {{out}}"
    cost = f"benchmarks/cost.py {_WHERE} --out {{out}}"
    preprocess = "benchmarks/parts.py preprocess --device {device} --out {out}"
    service = f"benchmarks/service.py {_WHERE} --out {{out}} --checks"
    fair = f"benchmarks/fair_table.py {_WHERE} --out {{out}} --store {{kept}}"
    found = {
        "speed": {
            "b16": speed(
                "--setting cifar100c --what codecs", f"--setting cifar10c --model {_SMALLER} --what codecs"
            ),
            "b32": speed("--setting cifar10c --what codecs"),
            "b16_batches": speed("--setting cifar100c --compiled --what baselines --what batches"),
            "b16_methods": speed("--setting cifar100c --what methods"),
            "b16_memory": speed("--setting cifar100c --what placements --what growth"),
            "b32_others": speed("--setting cifar10c --compiled --what baselines --what methods"),
            "l14": speed("--setting imagenetc --what codecs --what methods"),
        },
        "towers": {name: Step(f"{towers} --tower {name}") for name in TOWERS},
        "cost": {
            f"methods_{number}": Step(" ".join([cost, *(f"--run {name}" for name in names)]))
            for number, names in enumerate(METHOD_GROUPS, 1)
        },
        "service": {
            "speed": Step(
                f"{service} speed --model random:ViT-B-16 --max-batch 100 --processes 4 --seconds 4"
            ),
            "costs": Step(f"{service} costs", f"{service} R5 --seconds 1"),
        },
        "preprocess": {
            "224": Step(
                f"{preprocess} --workers 0 4 8", f"{preprocess} --workers 0 --batch 2 --files 3 --repeats 1"
            ),
        },
        "groups": {
            f"{processes}": Step(group(processes, 600), group(2, 2) if processes == 1 else None)
            for processes in (1, 2, 4, 8)
            if processes <= max(gpus, 1)
        },
        "reliability": {
            **{name: Step(f"{service} {name}") for name in CHECKS},
            "R13": Step(f"{service} R13", f"{service} R13 --seconds 1"),
            **{f"soak_{part}": Step(f"{service} R16 --seconds 150", sides=("new",)) for part in range(8)},
        },
        "fair_table": {
            f"part_{part}": Step(
                f"{fair} --jobs 8 --seconds 480",
                f"{fair} --limit 1 --method tent --stream single" if part == 0 else None,
                sides=("new",),
            )
            for part in range(20)
        },
    }
    found["towers"]["ViT-B-16"] = Step(
        f"{towers} --tower ViT-B-16", f"{towers} --uncompiled --tower {_SMALLER}"
    )
    found["cost"]["1000_classes"] = Step(
        f"{cost} --classes 1000 --run tda --run dmn --run ramen", f"{cost} --run tent --model {_SMALL}"
    )
    streams = sorted(testbed.glob("*.npz"))
    if (testbed / "config.json").exists() and len(streams) == 1:
        accuracy = (
            f"{_RUN} --model stored:{testbed} --data arrays --root {streams[0]} --data-set classes=cifar10"
        )
        found["accuracy"] = {
            f"seed_{seed}": Step(f"{accuracy} --seed {seed}", None if seed else f"{accuracy} --per-domain 2")
            for seed in (0, 1, 2)
        }
    return found


# -- one invocation ---------------------------------------------------------------------------------


class Bench:
    """Runs the steps of pieces that a folder does not have yet.

    Args:
        checkouts: The folder of each side.
        out: Where pieces are kept.
        turns: How often each side runs a step.
        values: What stands for ``{device}`` and ``{dtype}`` in commands.
        seconds: When to end.
    """

    def __init__(
        self, checkouts: dict[str, Path], out: Path, turns: int, values: dict[str, str], seconds: float
    ) -> None:
        self.checkouts, self.out, self.turns, self.values = checkouts, out, turns, values
        self.ends = time.monotonic() + seconds
        self.sources = {side: source(folder) for side, folder in checkouts.items()}
        self.owed: list[str] = []

    def run(self, piece: str, steps: dict[str, Step]) -> None:
        """One turn of all steps, then the next; the sides take turns at going first."""
        path = self.out / f"{piece}.json"
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"piece": piece, "runs": []}
        for turn in range(self.turns):
            for name, step in steps.items():
                for side in step.sides[:: 1 - 2 * (turn % 2)]:
                    mine = {"step": name, "side": side, "turn": turn, "source": self.sources[side]}
                    if any(mine.items() <= run.items() for run in kept["runs"]):
                        continue
                    spent = [run["seconds"] for run in kept["runs"] if run["step"] == name]
                    if time.monotonic() + max(spent, default=FIRST_SECONDS) > self.ends:
                        self.owed.append(f"{piece}/{name}/{side}")
                        continue
                    found = self._measure(step.command, side, self.out / f"{piece}_{side}")
                    if found is None:
                        self.owed.append(f"{piece}/{name}/{side}")
                        continue
                    kept["runs"].append({**mine, **found})
                    kept |= {"machine": machine(), "commits": self.sources, **self.values}
                    partial = path.with_suffix(".tmp")
                    partial.write_text(json.dumps(kept, indent=1) + "\n")
                    partial.replace(path)
        show(kept)

    def _measure(self, command: str, side: str, kept: Path) -> dict[str, Any] | None:
        """What a command measured, and how long that took; None if it failed."""
        checkout, own = self.checkouts[side], str(HERE / "src")
        given = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
        found = [str(checkout / "src"), *(entry for entry in given if entry != own)]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            words = command.format(out=out, folder=folder, kept=kept.resolve(), **self.values).split()
            print(f"{side}: {' '.join(words)}", flush=True)
            start = time.monotonic()
            try:
                done = subprocess.run(
                    [sys.executable, *words],
                    cwd=checkout,
                    env=os.environ | {"PYTHONPATH": ":".join(found)},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=min(STEP_SECONDS, max(self.ends - time.monotonic(), 1.0)),
                )
            except subprocess.TimeoutExpired:
                print(
                    f"  took longer than the time that was left, {time.monotonic() - start:.0f} s", flush=True
                )
                return None
            seconds = time.monotonic() - start
            if done.returncode:
                print(
                    f"{done.stdout[-1000:]}{done.stderr[-3000:]}\n  exit code {done.returncode}", flush=True
                )
                return None
            printed = out.read_text() if out.exists() else done.stdout
            return {"seconds": round(seconds, 1), "result": json.loads(printed)}


def source(checkout: Path) -> dict[str, str]:
    """The commit of a checkout, if that is known, and a hash of what is measured."""
    digest = hashlib.sha256()
    for path in sorted([*(checkout / "src").rglob("*.py"), *(checkout / "benchmarks").rglob("*.py")]):
        digest.update(path.relative_to(checkout).as_posix().encode() + b"\0" + path.read_bytes())
    found = {"sha256": digest.hexdigest()[:16]}
    if (checkout / ".git").exists():
        found["commit"] = git(checkout, "rev-parse", "HEAD").strip().decode()
    return found


def git(checkout: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(checkout), *words], check=True, stdout=subprocess.PIPE).stdout


def machine() -> dict[str, Any]:
    """Where figures were measured, and with what."""
    import torch

    names = ("torch", "triton", "torchvision", "open_clip_torch", "timm", "transformers", "numpy")
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"gpu": gpu, "gpus": torch.cuda.device_count(), "cores": os.cpu_count(), "versions": versions}


def show(kept: dict[str, Any]) -> None:
    """Print the milliseconds of both sides: of several turns, the least."""
    best: dict[str, dict[str, float]] = {}
    for run in kept["runs"]:
        for name, value in milliseconds(run["result"]):
            sides = best.setdefault(f"{run['step']}: {name}", {})
            sides[run["side"]] = min(value, sides.get(run["side"], value))
    for name, sides in best.items():
        if len(sides) == 2 and sides["old"]:
            ratio = sides["new"] / sides["old"]
            print(f"{kept['piece']:9} {name:75} {sides['old']:9.3f} -> {sides['new']:9.3f} ms  {ratio:.3f}")


def milliseconds(result: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All figures of a result that are times, with names made of where they stand."""
    if isinstance(result, list):
        for index, item in enumerate(result):
            named = isinstance(item, dict) and (item.get("what") or item.get("tower") or item.get("method"))
            yield from milliseconds(item, f"{name} {named or index}".strip())
    elif isinstance(result, dict):
        for key, value in result.items():
            in_stages = name.endswith(" stages")
            if isinstance(value, int | float) and (in_stages or "milliseconds" in key or key.endswith("_ms")):
                yield f"{name} {key}".strip(), float(value)
            elif isinstance(value, dict | list):
                outer = name if key in ("rows", "settings", "towers", "methods") else f"{name} {key}".strip()
                yield from milliseconds(value, outer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--old", help="a commit of this checkout, or the folder of another")
    parser.add_argument("--piece", action="append", help="may be repeated; all without it")
    parser.add_argument("--step", action="append", help="of the pieces; may be repeated; all without it")
    parser.add_argument("--turns", type=int, default=2, help="how often each side runs a step")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this invocation")
    parser.add_argument("--rehearse", action="store_true", help="each piece in small, once")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", help="float16 on a GPU, else float32")
    parser.add_argument("--testbed", type=Path, default=os.environ.get("RAMEN_TESTBED", "../shared/testbed"))
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="the folder of all pieces")
    parser.add_argument("--show", type=Path, help="measure nothing; print a piece")
    parser.add_argument("--list", action="store_true", help="measure nothing; print pieces and steps")
    arguments = parser.parse_args()
    if arguments.show is not None:
        show(json.loads(arguments.show.read_text()))
        return
    import torch

    known = pieces(torch.cuda.device_count(), Path(arguments.testbed).resolve())
    if arguments.list:
        for piece, steps in known.items():
            print(f"{piece}: {', '.join(steps)}")
        return
    if arguments.old is None:
        parser.error("--old is needed: a commit, or a folder")
    chosen = arguments.piece or list(known)
    if unknown := set(chosen) - known.keys():
        parser.error(f"--piece must be among {', '.join(known)}, got {', '.join(sorted(unknown))}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = arguments.device
    values = {"device": device, "dtype": arguments.dtype or ("float16" if device != "cpu" else "float32")}
    checkouts = {"old": older(arguments.old, arguments.out), "new": HERE}
    turns = 1 if arguments.rehearse else arguments.turns
    bench = Bench(checkouts, arguments.out, turns, values, 60 * arguments.minutes)
    for piece in chosen:
        steps = {name: step for name, step in known[piece].items() if name in (arguments.step or [name])}
        if arguments.rehearse:
            small = {name: step.small for name, step in steps.items() if step.small}
            steps = {name: Step(command, sides=steps[name].sides) for name, command in small.items()}
        bench.run(piece, steps)
    if bench.owed:
        print(f"owed: {', '.join(bench.owed)}\nrun it again")
        raise SystemExit(3)
    print("nothing is owed")


def older(old: str, out: Path) -> Path:
    """The folder of the older code; a commit is unpacked into one."""
    if (Path(old) / "src").is_dir():
        return Path(old).resolve()
    folder = out / f"code_{old.replace('/', '_')}"
    if not folder.exists():
        packed = git(HERE, "archive", old)
        folder.mkdir()
        subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    return folder.resolve()


if __name__ == "__main__":
    main()
