"""Jobs as tasks of a Ray cluster."""

import os
import time
from typing import Any

from ramen.experiments.run.queue.executor import JobExecutor
from ramen.experiments.run.queue.job import Job, describe_error, perform
from ramen.experiments.run.queue.messages import JobDied, JobEnd, JobMessage, JobSaid
from ramen.experiments.run.resources import Resources
from ramen.utils import checks

LOCAL = "local"
_PATIENCE = 10.0  # seconds for tasks to end after they were cancelled by force


class RayTasks(JobExecutor):
    """One task per job, on whatever node has room for it.

    A job whose process or node dies is started again. It resumes from its checkpoint if the folder of results
    is shared by the nodes. All nodes must have this package, in the same version.

    Args:
        address: ``local`` starts a cluster on this machine, which ends with the block; ``auto`` or an address
            joins one. If this process has joined one already, that is used.
        gpus: Of each job; a fraction if several jobs share a GPU.
        cpus: Cores of each job.
        options: Other arguments of ``ray.init``.
    """

    retries = 3

    def __init__(
        self, address: str, *, gpus: float = 0.0, cpus: float = 1.0, options: dict[str, Any] | None = None
    ) -> None:
        if checks.number("gpus", gpus, 0) > 1 and gpus != int(gpus):
            raise ValueError(f"gpus must be a whole number or less than 1, got {gpus}")
        self._ray = import_ray()
        self._resources = {"num_gpus": gpus, "num_cpus": checks.number("cpus", cpus, 0)}
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._join(address, options or {})
        self._running: dict[Any, int] = {}
        self._mail: Any = None  # what the mailbox will answer; nobody waits for it, since it may start late
        self._lack = self._missing_resources()
        try:
            if self._lack and address == LOCAL:
                raise ValueError(f"--ray: {self._lack}")
            self._mailbox = self._ray.remote(_Mailbox).options(num_cpus=0, max_restarts=-1).remote()
            # a worker with a GPU would end after each task anyway, to give back the GPU's memory
            self._task = self._ray.remote(_perform).options(max_retries=0, **self._resources)
        except BaseException:
            self.close()
            raise

    def _join(self, address: str, options: dict[str, Any]) -> None:
        if address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent without being asked for
            options = {"include_dashboard": False, **options}
        try:
            # what tasks print belongs in their logs
            self._ray.init(address=address, log_to_driver=False, logging_level="WARNING", **options)
        except (ConnectionError, ValueError) as error:
            raise ValueError(f"--ray: no cluster can be joined at {address!r}: {error}") from None
        except Exception as error:  # Ray raises what it likes if one of its processes does not start
            raise OSError(f"--ray: Ray does not start: {error}") from None

    def _missing_resources(self) -> str:
        """What no node has enough of now, in words; a node that has it may join later."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for name, needed in (("GPU", self._resources["num_gpus"]), ("CPU", self._resources["num_cpus"])):
            most = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if needed > most:
                return f"a run needs {needed:g} {name} of one node, and no node has more than {most:g}"
        return ""

    def has_room(self) -> bool:
        """Always: the cluster has a queue of its own."""
        return True

    def submit(self, number: int, job: Job) -> None:
        """Hand the job to the cluster."""
        self._running[self._task.remote(number, job, self._mailbox, os.getcwd())] = number

    def wait(self, seconds: float) -> list[tuple[int, JobMessage]]:
        """Messages of all tasks, and the ends of those that are done."""
        if not self._running:
            time.sleep(seconds)
            return []
        if self._mail is None:
            self._mail = self._mailbox.empty.remote()
        tasks, said = list(self._running), self._complaint()
        ready, _ = self._ray.wait([*tasks, self._mail], num_returns=len(tasks) + 1, timeout=seconds)
        reports = self._open_mail() if self._mail in ready else []
        ends = [(self._running.pop(task), self._end(task)) for task in tasks if task in ready]
        return [*said, *reports, *ends]

    def _complaint(self) -> list[tuple[int, JobMessage]]:
        """Say once that runs wait for a node that is not there yet."""
        lack, self._lack = self._lack, ""
        first = next(iter(self._running.values()))
        return [(first, JobSaid(f"Runs wait for a node: {lack}."))] if lack else []

    def _open_mail(self) -> list[tuple[int, JobMessage]]:
        mail, self._mail = self._mail, None
        try:
            messages: list[tuple[int, JobMessage]] = self._ray.get(mail)
            return messages
        except self._ray.exceptions.RayActorError:
            return []  # its node is gone; it starts again elsewhere, and nothing but a few reports is lost

    def _end(self, task: Any) -> JobMessage:
        errors = self._ray.exceptions
        try:
            end: JobEnd = self._ray.get(task)
            return end
        except errors.TaskCancelledError:
            return JobEnd("stopped")
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError):
            return JobDied("its process or its node died")
        except errors.OutOfMemoryError:
            return JobDied("its node ran out of memory")
        except errors.ObjectLostError:
            return JobDied("the node with its result died")
        except errors.RayError as error:  # above all: this package cannot be imported there
            return JobEnd("failed", reason=f"Ray could not run it: {describe_error(error)}")

    def stop(self) -> None:
        """Interrupt each task, as Ctrl-C would; those that wait are dropped."""
        for task in self._running:
            self._ray.cancel(task, force=False)

    def close(self) -> None:
        """End all tasks, and the cluster if it was started here."""
        running = list(self._running)
        for task in running:
            self._ray.cancel(task, force=True)
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=_PATIENCE)
        if self._is_ours and self._ray.is_initialized():
            self._ray.shutdown()
        elif hasattr(self, "_mailbox"):
            self._ray.kill(self._mailbox)


class _Mailbox:
    """An actor that keeps the messages of tasks until the queue takes them."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, JobMessage]] = []

    def put(self, number: int, message: JobMessage) -> None:
        self._messages.append((number, message))

    def empty(self) -> list[tuple[int, JobMessage]]:
        messages, self._messages = self._messages, []
        return messages


def _perform(number: int, job: Job, mailbox: Any, folder: str) -> JobEnd:
    """A task, in the folder of the command, which paths may be relative to."""
    if os.path.isdir(folder):
        os.chdir(folder)
    return perform(job, lambda message: mailbox.put.remote(number, message), Resources())


def import_ray() -> Any:
    """The package; ValueError with what to do if it is not installed."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ValueError(f"--ray needs Ray: pip install 'ramen-tta[ray]' ({error})") from None
    return ray
