"""Jobs for tests of the queue; any process can import them."""

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramen.experiments.run.method_run import MethodRun
from ramen.experiments.run.queue.experiment_queue import ExperimentJob
from ramen.experiments.run.queue.job import Job, JobDesk
from ramen.utils.file_locks import LockedError


@dataclass
class SmallJob(Job):
    """Does what ``work`` says with the number."""

    name: str
    folder: Path
    work: str = "square"
    number: int = 3
    owner: str = "own"
    log: Path = field(init=False)
    delivered: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = self.folder / f"{self.name}.log"

    def run(self, desk: JobDesk) -> Any:
        desk.say(f"{self.name} begins")
        return getattr(self, f"_{self.work}")(desk)

    def deliver(self, value: Any) -> None:
        self.delivered.append(value)

    def _square(self, desk: JobDesk) -> int:
        desk.report("squaring", 1, 1)
        return self.number**2

    def _fail(self, desk: JobDesk) -> None:
        print("a line of a library", file=sys.stderr)
        os.write(1, b"a line of a child\n")
        raise RuntimeError("it cannot be done")

    def _refuse(self, desk: JobDesk) -> None:
        raise ValueError("number must be positive, got -1")

    def _meet(self, desk: JobDesk) -> None:
        raise LockedError("process 7 on far-away is running this experiment")

    def _interrupted(self, desk: JobDesk) -> None:
        raise KeyboardInterrupt

    def _environment(self, desk: JobDesk) -> dict[str, Any]:
        import torch

        return {"gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": torch.get_num_threads()}

    def _place(self, desk: JobDesk) -> str:
        return os.getcwd()

    def _pid(self, desk: JobDesk) -> int:
        return os.getpid()

    def _die(self, desk: JobDesk) -> None:
        print("the last words", flush=True)
        os._exit(5)

    def _sleep(self, desk: JobDesk) -> None:
        (self.folder / f"{self.name}.pid").write_text(str(os.getpid()))
        time.sleep(600)


@dataclass
class SlowExperimentJob(ExperimentJob):
    """An experiment whose batches take some time, so that a test can meet it at work."""

    pause: float = 0.3  # seconds

    def run(self, desk: JobDesk) -> dict[str, Any]:
        step = MethodRun._step

        def slowly(run: MethodRun, *given: Any) -> Any:
            time.sleep(self.pause)
            return step(run, *given)

        MethodRun._step = slowly  # type: ignore[method-assign]
        try:
            return super().run(desk)
        finally:
            MethodRun._step = step  # type: ignore[method-assign]


@dataclass
class NodeExperimentJob(SlowExperimentJob):
    """The same, which also says on which node of a Ray cluster it runs, each time that it starts."""

    nodes: Path = field(kw_only=True)

    def run(self, desk: JobDesk) -> dict[str, Any]:
        import ray

        with self.nodes.open("a") as file:
            print(ray.get_runtime_context().get_node_id(), file=file)
        return super().run(desk)
