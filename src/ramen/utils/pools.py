"""Processes that call functions and never outlive the command: of this machine, or tasks of a Ray cluster."""

import faulthandler
import multiprocessing
import os
import queue
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Self

import torch

from ramen.utils import checks
from ramen.utils.workers import STARTING, available_cores, end_with_parent

LOCAL = "local"
_PATIENCE = 10.0  # seconds for a process to end
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class DiedError(RuntimeError):
    """The process of a call, or its machine, is gone."""


class Pool(ABC):
    """Processes that call functions, within a ``with`` block; none of them outlives it.

    Attributes:
        retries: How often a run is started again if its process dies.
        notice: What the user should know before anything runs.
    """

    retries = 0
    notice = ""

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in one of the processes; DiedError is what becomes of it if that dies."""

    @abstractmethod
    def stop(self) -> None:
        """Interrupt all calls, as Ctrl-C would."""

    @abstractmethod
    def close(self) -> None:
        """End all processes at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_pool(jobs: int | None, ray: str | None, gpus: float | None, device: str) -> "Pool":
    """What runs many experiments at once, as ``run_all`` takes it, on a device."""
    on_gpu = device.startswith("cuda")
    if ray is not None:
        return RayPool(ray, gpus=float(on_gpu) if gpus is None else gpus)
    names = visible_gpus() if device == "cuda" else []  # cuda:1 is a choice of its own
    return LocalPool(jobs or len(names) or (1 if on_gpu else available_cores()), gpus=names)


class LocalPool(Pool):
    """Processes of this machine: one per GPU, or with its share of the cores. One that dies is replaced.

    They are spawned, not forked: a copy of a process that uses a GPU or threads would hang. Each keeps the
    model and the data of its last run for the next one.

    Args:
        count: How many.
        gpus: The GPUs by their numbers or names; each process sees one of them, as ``cuda``. With fewer GPUs
            than processes, several share one.
        threads: Of each process; by default this process's threads are divided among them.
        context: How to start processes.
    """

    def __init__(
        self,
        count: int,
        *,
        gpus: Sequence[str] = (),
        threads: int | None = None,
        context: BaseContext | None = None,
    ) -> None:
        checks.integer("count", count, 1)
        context = context or multiprocessing.get_context("spawn")
        threads = threads or max(1, torch.get_num_threads() // count)
        self.workers = [
            _Worker(gpus[place % len(gpus)] if gpus else None, threads, context) for place in range(count)
        ]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)
        # one thread for each process, which waits for it
        self._threads = ThreadPoolExecutor(count, "ramen-worker", initializer=_hold_back_ctrl_c)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in an idle process, or as soon as one is idle."""
        return self._threads.submit(self._call, function, arguments)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        worker = self._idle.get()  # there is one, as there is one for each thread
        try:
            return worker.call(function, arguments)
        finally:
            self._idle.put(worker)

    def stop(self) -> None:
        """Interrupt each process that works; one that has not begun to has nothing to save."""
        for worker in self.workers:
            worker.stop()

    def close(self) -> None:
        """End idle processes, kill those that are busy."""
        for worker in self.workers:
            worker.stop(signal.SIGKILL)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self.workers:
            worker.close()


class _Worker:
    """A process that calls one function after the other; the next call replaces it if it has died."""

    def __init__(self, gpu: str | None, threads: int, context: BaseContext) -> None:
        self._gpu, self._threads, self._context = gpu, threads, context
        self.process: BaseProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._lock = threading.Lock()  # of what follows, which signals depend on
        self._busy = self._listens = self._stopped = False

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            if self._stopped:
                raise DiedError("it was not started, as all were asked to stop")
            self._busy = True
            if self.process is None or not self.process.is_alive():
                self._start()
        assert self._pipe is not None
        assert self.process is not None
        try:
            if not self._listens:
                self._pipe.recv()
                self._listens = True
            self._pipe.send((function, arguments))
            value, error = self._pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise DiedError(_cause(self.process)) from None
        finally:
            self._busy = False
        if error is not None:
            raise error
        return value

    def _start(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._pipe, other = self._context.Pipe()
        self._listens = False
        self.process = self._context.Process(  # type: ignore[attr-defined]  # of every real context
            target=_serve, args=(other, self._gpu, self._threads), name="ramen-worker"
        )
        with STARTING, _visible(self._gpu):
            self.process.start()
        other.close()

    def stop(self, number: int = signal.SIGINT) -> None:
        with self._lock:
            self._stopped = True
            if self._busy and self.process is not None and self.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(self.process.pid, number if self._listens else signal.SIGKILL)

    def close(self) -> None:
        if self.process is None or self._pipe is None:
            return
        self._pipe.close()
        self.process.join(_PATIENCE)
        self.process.kill()
        self.process.join()


def _serve(pipe: "Connection[Any, Any]", gpu: str | None, threads: int) -> None:
    """The life of a process: calls until the pool closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what was held back is dropped
    os.setsid()  # Ctrl-C in the terminal is for the command, which then asks its processes to stop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end_with_parent()
    faulthandler.enable()
    if gpu is not None:
        os.environ[_VISIBLE] = gpu  # again, for processes that are forked from an older one
    torch.set_num_threads(threads)
    answer: tuple[Any, Exception | None]
    try:
        pipe.send("ready")
        while True:
            function, arguments = pipe.recv()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                answer = function(*arguments), None
            except Exception as error:
                answer = None, error
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the pool is gone, or asked to stop between two calls


def _hold_back_ctrl_c() -> None:
    """What starts from this thread does not get Ctrl-C before it can deal with it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextmanager
def _visible(gpu: str | None) -> Iterator[None]:
    """A process that starts meanwhile sees this GPU alone, already when it imports what asks for GPUs."""
    before = os.environ.get(_VISIBLE)
    try:
        if gpu is not None:
            os.environ[_VISIBLE] = gpu
        yield
    finally:
        if before is not None:
            os.environ[_VISIBLE] = before
        elif gpu is not None:
            del os.environ[_VISIBLE]


def _cause(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None or code >= 0:
        return f"its process {process.pid} ended with exit code {code}"
    name = signal.Signals(-code).name
    perhaps = "; if nobody did that, the memory was full" if -code == signal.SIGKILL else ""
    return f"its process {process.pid} was killed by {name}{perhaps}"


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that ``CUDA_VISIBLE_DEVICES`` takes."""
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


class RayPool(Pool):
    """Calls as tasks of a Ray cluster, on whatever node has room.

    A run whose process or node dies is started again. It resumes from its checkpoint if the nodes share the
    folder of results. All nodes must have this package, in the same version.

    Args:
        address: ``local`` starts a cluster on this machine, which ends with the block; ``auto`` or an address
            joins one. If this process has joined one already, that is used.
        gpus: Of each call; a fraction if several share a GPU.
        options: Other arguments of ``ray.init``.
    """

    retries = 3

    def __init__(self, address: str, *, gpus: float = 0.0, options: dict[str, Any] | None = None) -> None:
        if checks.number("gpus", gpus, 0) > 1 and gpus != int(gpus):
            raise ValueError(f"gpus must be a whole number or less than 1, got {gpus}")
        self._ray = _import_ray()
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._join(address, options or {})
        self._running: dict[Any, Future[Any]] = {}
        lack = self._lack(GPU=gpus, CPU=1.0)
        if lack and address == LOCAL:
            self.close()
            raise ValueError(f"--ray: {lack}")
        self.notice = lack and f"Runs wait for a node: {lack}."
        # a worker with a GPU would end after each task anyway, to give back the GPU's memory
        self._task = self._ray.remote(_in_folder).options(max_retries=0, num_gpus=gpus, num_cpus=1)

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

    def _lack(self, **needs: float) -> str:
        """What no node has enough of now, in words; a node that has it may join later."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for name, needed in needs.items():
            most = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if needed > most:
                return f"a run needs {needed:g} {name} of one node, and no node has more than {most:g}"
        return ""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Hand the call to the cluster, which has a queue of its own."""
        task = self._task.remote(os.getcwd(), function, arguments)
        own: Future[Any] = Future()
        own.set_running_or_notify_cancel()
        self._running[task] = own

        def ended(future: Future[Any]) -> None:
            self._running.pop(task, None)
            error = future.exception()
            if error is None:
                own.set_result(future.result())
            else:
                own.set_exception(self._translated(error))

        task.future().add_done_callback(ended)
        return own

    def _translated(self, error: BaseException) -> BaseException:
        errors = self._ray.exceptions
        if isinstance(error, errors.RayTaskError):  # the function's own
            cause: BaseException = error.cause
            return cause
        for kinds, reason in (
            ((errors.WorkerCrashedError, errors.NodeDiedError), "its process or its node died"),
            ((errors.LocalRayletDiedError,), "its process or its node died"),
            ((errors.OutOfMemoryError,), "its node ran out of memory"),
            ((errors.ObjectLostError,), "the node with its result died"),
            ((errors.TaskCancelledError,), "it was cancelled"),
        ):
            if isinstance(error, kinds):
                return DiedError(reason)
        if isinstance(error, errors.RayError):  # above all: this package cannot be imported there
            return OSError(f"Ray could not run it: {describe_error(error)}")
        return error

    def stop(self) -> None:
        """Interrupt each task, as Ctrl-C would; those that wait are dropped."""
        for task in list(self._running):
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


def _in_folder(folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """A task, in the folder of the command, which paths may be relative to."""
    if os.path.isdir(folder):
        os.chdir(folder)
    return function(*arguments)


def _import_ray() -> Any:
    """The package; ValueError with what to do if it is not installed."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ValueError(f"--ray needs Ray: pip install 'ramen-tta[ray]' ({error})") from None
    return ray


def describe_error(error: BaseException) -> str:
    """An error in one line; the type says more than the text if it is not one of ours."""
    text = str(error).strip()
    if not text or not isinstance(error, ValueError | OSError):
        return f"{type(error).__name__}: {text}".rstrip(": ")
    return text
