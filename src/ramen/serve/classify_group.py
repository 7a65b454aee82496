"""``ramen classify`` in the processes that ``torchrun`` has started: the first one leads, the others follow.

All of them load the model, decode and classify. The first one alone finds files, writes the output, the page
and the sorted folders, shows progress and reports errors: it does what a single process does, and gives the
others an order for everything that all must do together. Orders are values that all processes exchange, so
that the first one also learns if a signal asked another one to stop.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rich.console import Console

from ramen.serve.classify_local import ModelAnswering
from ramen.serve.classify_request import ClassifyRequest
from ramen.serve.classify_run import ClassifyReport, classify_with
from ramen.serve.labelling import ResultSource, in_batches
from ramen.serve.photos import as_sources
from ramen.serve.predictor import Counts, Predictor
from ramen.serve.result import Result
from ramen.utils.peers import Peers, chosen_timeout, meeting
from ramen.utils.reported_once import ReportedElsewhereError, attempt_reported_once
from ramen.utils.stopping import StopRequest, stop_on_signals

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Seconds that the others wait while the first process looks for files or reads a long output. If it dies, its
# connections close, and they know at once.
_PATIENCE = 1800.0
_AT_ONCE = 4096  # paths in one order
_Value = TypeVar("_Value")

# Orders: open the state for so many files; here are some of their paths; start to classify them; continue
# with the next batch; close; there was an error.
_OPEN, _FILES, _CLASSIFY, _NEXT, _CLOSE, _FAILED = "open", "files", "classify", "next", "close", "failed"


class GroupOrder(NamedTuple):
    """What the first process wants all to do."""

    name: str
    value: Any = None


def classify_in_group(
    group: "ProcessGroup", make_request: Callable[[], ClassifyRequest], console: Console
) -> ClassifyReport | None:
    """Classify files together with the other processes of a group; all of them call this.

    Args:
        group: The processes.
        make_request: Reads the command line. In a process other than the first, the files do not matter.
        console: Where the first process shows progress.

    Returns:
        How it ended, in the first process; None in the others.
    """
    orders = GroupOrders(group)
    try:
        request = orders.attempt(make_request, "reading the command line")
        if orders.leads:
            return classify_with(request, console, _Leading(request, orders))
        _follow(request, orders)
    except ReportedElsewhereError:
        pass
    return None


class GroupOrders:
    """What the first process tells the others to do.

    Args:
        group: All processes.

    Attributes:
        group: The same, for what they compute together.
        peers: The same, with patience.
        leads: Whether this is the first process.
        in_step: Whether the others wait for an order, or soon will.
        stop: What a signal has asked this process for.
    """

    def __init__(self, group: "ProcessGroup") -> None:
        self.group, self.peers = group, _patient_peers()
        self.leads = self.peers.rank == 0
        self.in_step = True
        self.stop: StopRequest | None = None

    def attempt(self, work: Callable[[], _Value], what: str) -> _Value:
        """What ``work`` returns, if it succeeds in all processes; else the first raises what to report."""
        with self.together():
            return attempt_reported_once(self.peers, work, what)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block that all processes enter; after an error in it, they are not in step."""
        self.in_step = False
        yield
        self.in_step = True

    def hurry(self) -> None:
        """From now on, an order comes soon after the one before it."""
        self.peers.timeout = chosen_timeout()

    def give(self, order: GroupOrder) -> None:
        """Tell the others, who wait for it, and learn whether somebody asked one of them to stop."""
        with self.together():
            said = self._exchange(order)
        signals = [theirs["signal"] for theirs in said if theirs["signal"] is not None]
        if self.stop is not None and signals and not self.stop.requested:
            self.stop.signal = signals[0]
            self.stop.event.set()

    def receive(self) -> GroupOrder:
        """The next order; ReportedElsewhereError if the first process has failed."""
        name, value = self._exchange(None)[0]["order"]
        if name == _FAILED:
            raise ReportedElsewhereError(value)
        return GroupOrder(name, value)

    def _exchange(self, order: GroupOrder | None) -> list[dict[str, Any]]:
        signal = None if self.stop is None else self.stop.signal
        return self.peers.values({"order": order, "signal": signal}, "waiting for the first process")


def _patient_peers() -> Peers:
    """All processes, as a group of its own that waits for long."""
    import torch.distributed as dist

    patience = max(_PATIENCE, chosen_timeout())
    later = hasattr(dist.ProcessGroup, "set_timeout")  # not in all versions of torch
    seconds = chosen_timeout() if later else patience
    with meeting(seconds):
        group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    if later:  # only now: one that dies while they meet is not waited for as long
        group.set_timeout(timedelta(seconds=patience))
    return Peers(group, patience)


class _Leading(ModelAnswering):
    """Answers of all processes, for the first one."""

    def __init__(self, request: ClassifyRequest, orders: GroupOrders) -> None:
        super().__init__(request, orders.group, orders.attempt)
        self._orders = orders

    def __enter__(self) -> "_Leading":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._orders.in_step:
            self._orders.give(GroupOrder(_FAILED, f"{type(error).__name__}: {error}"))

    @contextmanager
    def predictor(self, files: int) -> Generator[ResultSource, None, None]:
        """A predictor that gives orders as well."""
        self._orders.give(GroupOrder(_OPEN, files))
        opened = self._orders.attempt(lambda: self.open_predictor(files), "opening the state")
        leading = _LeadingPredictor(opened, self._orders)
        with opened:
            yield leading
            leading.close()

    def heed(self, stop: StopRequest) -> None:
        """Let a request to stop that reached another process count as one to this process."""
        self._orders.stop = stop


class _LeadingPredictor:
    """A predictor that tells the others what to classify."""

    def __init__(self, predictor: Predictor, orders: GroupOrders) -> None:
        self._predictor, self._orders, self._closed = predictor, orders, False

    @property
    def counts(self) -> Counts:
        """What was answered so far."""
        return self._predictor.counts

    @property
    def resumed(self) -> tuple[Result, ...]:
        """The results of the last batch that the state has learned."""
        return self._predictor.resumed

    def classify(self, sources: Any) -> Generator[Result, None, None]:
        """One result per file, in order; whoever stops reading stops all processes.

        Args:
            sources: Pairs of ``as_sources``.
        """
        paths = [path for path, _ in sources]
        left = iter(paths)
        while part := list(islice(left, _AT_ONCE)):
            self._orders.give(GroupOrder(_FILES, part))
        self._orders.give(GroupOrder(_CLASSIFY))
        self._orders.hurry()
        batches = in_batches(self._predictor, as_sources(paths))
        try:
            while batch := self._next(batches):
                yield from batch
                self._orders.give(GroupOrder(_NEXT))
        except GeneratorExit:
            self.close()  # now: the others need not wait until the page is written
            raise
        self.close()

    def _next(self, batches: Iterator[list[Result]]) -> list[Result]:
        with self._orders.together():
            return next(batches, [])

    def close(self) -> None:
        """Save what was learned, and let the others end; does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        self._orders.give(GroupOrder(_CLOSE))
        with self._orders.together():
            self._predictor.close()
        self._orders.in_step = False  # they have left


def _follow(request: ClassifyRequest, orders: GroupOrders) -> None:
    """Do as the first process says."""
    answering = ModelAnswering(request, orders.group, orders.attempt)
    files = orders.receive().value
    predictor = orders.attempt(lambda: answering.open_predictor(files), "opening the state")
    paths: list[str] = []
    with predictor, stop_on_signals(lambda: None) as orders.stop:
        while (order := orders.receive()).name == _FILES:
            paths.extend(order.value)
        if order.name == _CLASSIFY:
            _classify(predictor, paths, orders)


def _classify(predictor: Predictor, paths: Sequence[str], orders: GroupOrders) -> None:
    """Take part until all files are classified or the first process has enough."""
    orders.hurry()
    for _ in in_batches(predictor, as_sources(paths)):
        if orders.receive().name == _CLOSE:
            return
    orders.receive()  # to close
