"""``ramen classify`` from files to labels: what is left to do is found, answered, written and shown."""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ramen.classify.files import ClassFolders, Photos, as_sources, follow
from ramen.classify.output import Identity, Output, Tally, dtypes_of, open_output
from ramen.client.result import Result
from ramen.experiments.values import plain
from ramen.methods._registry import create
from ramen.models.names import load_classifier, recorded_name
from ramen.predict.predictor import Predictor
from ramen.state import dtypes_below
from ramen.utils.checks import AUTO
from ramen.utils.devices import bfloat16_unit
from ramen.utils.signals import stop_on_signals

if TYPE_CHECKING:
    from ramen.classify.command import ClassifyRequest

_FEW = 500  # files for which starting worker processes is not worth it
_MOST_WORKERS = 8


@dataclass(frozen=True)
class ClassifyReport:
    """How a run ended."""

    summary: dict[str, Any]  # plain values, for JSON
    exit_code: int  # 0, 3 if files failed, or that of the signal that stopped it


class Batches(Protocol):
    """What classifies: a predictor, or a stream of a service."""

    @property
    def resumed(self) -> tuple[Result, ...]:
        """The results of the last batch that the state has learned."""

    def batches(self, sources: object) -> Generator[list[Result], None, None]:
        """The results of one batch of sources after the other, in order."""


class Answering(ABC):
    """What answers for files: a model in this process, or a service.

    Attributes:
        identity: What its answers are made with; an output holds answers of one identity.
        state: Where what is learned is kept, in the words of an output's journal; None if nowhere.
    """

    identity: Identity
    state: str | None

    @abstractmethod
    def open(self, files: int) -> AbstractContextManager[Batches]:
        """What classifies this many files, as long as a block lasts; a state is read now."""

    def forget_unlearned(self, output: Output) -> int:
        """Remove rows of a killed run that are to be made again, once the state is open; returns how many."""
        return 0  # a service does not say which images it has learned

    @abstractmethod
    def notes(self, output: Output, files: Sequence[str], again: int) -> Iterable[str]:
        """What users should know before it starts: with so many files left, and so many rows made again."""

    @abstractmethod
    def page_facts(self) -> dict[str, Any]:
        """What the page says about how its results were made: fields of ``PageSettings``."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Facts for the summary of a run."""


def classify_files(request: "ClassifyRequest", console: Console) -> ClassifyReport:
    """Classify files, or what is left to do of an earlier run.

    Args:
        request: What to do.
        console: Where to show progress.
    """
    request.check()
    photos = Photos.from_arguments(request.photos, sys.stdin.buffer, request.sort_into)
    if request.watch and not photos.folders:
        raise ValueError("--watch follows folders: at least one of PHOTOS must be a folder")
    if not request.watch and not os.path.exists(request.out):  # a run before may have moved all of them
        photos.check_some()
    with ExitStack() as stack:
        answering = stack.enter_context(_answering(request))
        output = stack.enter_context(
            open_output(
                request.out,
                answering.identity,
                state=answering.state,
                retry_failed=request.retry_failed,
                formulas=request.formulas,
            )
        )
        files = photos.find(output.keys)
        predictor = stack.enter_context(answering.open(len(files)))
        again = answering.forget_unlearned(output)
        if again:
            files = photos.find(output.keys)
        say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
        stop = stack.enter_context(stop_on_signals(lambda: say("stopping after this batch")))
        output.start()
        notes = answering.notes(output, files, again)
        for words in (*_introduction(request, output, files, photos.left_out()), *notes):
            say(words)
        done = {result.key for result in recover(predictor, output, files)}
        files = [file for file in files if file not in done]
        folders = None
        if request.sort_into is not None:
            folders = ClassFolders(request.sort_into, answering.identity.classes, copy=request.copy)
            folders.place(output.results())  # a run that was killed may have left some out
        if files or request.watch:
            with shown_on(console, None if request.watch else len(files)) as bar:
                coming: Iterable[str] = files
                if request.watch:
                    coming = follow(lambda: photos.find(output.keys), request.interval, stop.event)
                try:
                    for batch in label_files(predictor, coming, output, lambda: stop.requested):
                        if folders is not None:
                            folders.place(batch)
                        bar.add(batch)
                finally:
                    stop.event.set()  # whatever ended this: nobody waits for new files any more
        output.finish()
        if request.page is not None:
            from ramen.classify.page import PageSettings, write_page

            facts = answering.page_facts() | {"output": request.out, "decoding": request.decoding()}
            write_page(request.page, output, PageSettings(**facts))
        stopped = stop.exit_code if stop.signal is not None else None
        return _report(request, output, stopped, answering.summary())


def _answering(request: "ClassifyRequest") -> AbstractContextManager[Answering]:
    if request.server is None:
        return nullcontext(ModelAnswering(request))
    from ramen.classify.service import service_answering

    return service_answering(request)


def _introduction(
    request: "ClassifyRequest", output: Output, files: Sequence[str], left_out: str
) -> Iterator[str]:
    """Messages about anything unexpected in the output or the files."""
    if left_out:
        yield f"files that are no images are left out: {left_out}"
    if output.before:
        yield f"{output.path} has {output.before:,} results already; files that are left: {len(files):,}"
    elif not files and not request.watch:
        yield "there are no images to classify"


def label_files(
    predictor: Batches, files: Iterable[str], output: Output, stopped: Callable[[], bool]
) -> Iterator[list[Result]]:
    """Classify files and write the results to the output, batch by batch.

    Args:
        predictor: What classifies.
        files: Paths, none of which is in the output.
        output: Has all results of a batch before the next one is answered.
        stopped: Whether somebody asked to stop: the batch that is being answered is then the last one.
    """
    for batch in predictor.batches(as_sources(takewhile(lambda _: not stopped(), files))):
        output.append(batch)
        yield batch
        if stopped():
            break


def forget_unlearned(output: Output, learned: int, batch_size: int) -> int:
    """Remove the last rows of a killed run if its state has not learned from them: they are made again.

    States are written in the background, so that rows may be there first, but no more than those of two
    batches. If more are ahead of the state, it is another one, or a damaged one: all rows stay, as they do if
    a file is gone.

    Args:
        output: Knows whether the last run was killed.
        learned: How many images the state has seen.
        batch_size: Files per batch.

    Returns:
        How many rows were removed.
    """
    if not output.recovering:
        return 0
    ahead = [result.key for result in output.results_of_last_run() if result.state_version > learned]
    if len(ahead) > 2 * batch_size or not all(map(os.path.exists, ahead)):
        return 0
    output.remove_last(len(ahead))
    return len(ahead)


def recover(predictor: Batches, output: Output, files: Sequence[str]) -> list[Result]:
    """Results that the state of a killed run has learned and that it could not write; they are written now.

    Their images must not be classified again: the state would learn them twice.

    Args:
        predictor: Has the results of the last batch that its state has learned.
        output: Knows whether the last run was killed.
        files: That are not in the output; results of others are not ours.
    """
    missing = set(files)
    found = [result for result in predictor.resumed if result.key in missing] if output.recovering else []
    if found:
        output.append(found)
    return found


class ModelAnswering(Answering):
    """Answers with a model that it loads."""

    def __init__(self, request: "ClassifyRequest") -> None:
        self._request = request
        earlier = chain(dtypes_of(request.out), dtypes_below(request.state))
        dtype = request.dtype or next(earlier, AUTO)
        classifier = load_classifier(replace(request, dtype=dtype), request.class_names())
        parameters = request.parameters()
        self._method = create(request.method, classifier, **parameters)
        source = self._method.info.source
        self.state = None if request.state is None else os.path.abspath(os.path.expanduser(request.state))
        self.identity = Identity(
            model=recorded_name(request.model),
            weights=classifier.fingerprint()["encoder"],
            classes=tuple(classifier.classes),
            templates=tuple(classifier.templates or ()),
            method=request.method if source is None else f"{request.method} of {source}",
            parameters=plain(parameters),
            orient=not request.no_orient,
            dtype=classifier.fingerprint()["dtype"],
        )

    def open(self, files: int) -> Predictor:
        request, workers = self._request, self._request.workers
        if workers is None:
            cores = os.cpu_count() or 1
            workers = 0 if request.watch or files < _FEW else max(0, min(_MOST_WORKERS, cores - 1))
        decoding = request.decoding()
        return Predictor(
            self._method,
            store=request.state,
            batch_size=request.batch_size,
            max_delay=request.interval if request.watch else None,  # a batch must not wait forever
            workers=workers,
            formats=decoding.formats,
            max_pixels=decoding.max_pixels,
            orient=decoding.orient,
        )

    def forget_unlearned(self, output: Output) -> int:
        return forget_unlearned(output, self._method.images_seen, self._request.batch_size)

    def notes(self, output: Output, files: Sequence[str], again: int) -> Iterable[str]:
        if self.identity.dtype == "bfloat16" and self._request.dtype in (None, AUTO):
            yield f"computing in bfloat16, as this CPU has {bfloat16_unit()}; --dtype float32 is slower"
        if again:
            state = self._request.state
            yield f"{state} had not learned from the last {again:,} results, which are made again"
        if output.before and files and self.state is None:
            yield "what was learned then is lost: only --state DIR keeps it from one run to the next"

    def page_facts(self) -> dict[str, Any]:
        from ramen.experiments import paper
        from ramen.experiments.provenance import versions

        request, method, classifier = self._request, self._method, self._method.classifier
        installed = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
        return {
            "model": recorded_name(request.model),
            "method": paper.title(request.method),
            "classes": classifier.classes,
            "facts": {
                "prompt templates": "; ".join(classifier.templates or ()),
                "weights": f"sha256 {classifier.fingerprint()['encoder']}",
                "device": f"{classifier.device}, {str(classifier.dtype).removeprefix('torch.')}",
                "files per batch": f"{request.batch_size:,}",
                "state": request.state or "none: what is learned ends with the run",
                "versions": installed,
            },
            "parameters": {name: str(value) for name, value in method.parameters.items()},
            "chosen": method.parameters.why,
        }

    def summary(self) -> dict[str, Any]:
        request = self._request
        return {"state": request.state, "model": self.identity.model, "method": request.method}


# -- the progress and the end ------------------------------------------------------------------------------


class ClassifyBar:
    """A bar on a console; ``shown_on`` makes one."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._start, self._tally = time.perf_counter(), Tally()

    def add(self, batch: Sequence[Result]) -> None:
        """Count the results of a batch."""
        for result in batch:
            self._tally.add(result)
        seconds = time.perf_counter() - self._start
        self._progress.update(self._task, advance=len(batch), status=_status(self._tally, seconds))


def _status(tally: Tally, seconds: float) -> str:
    """Rate, share of changed labels, and errors if there are any.

    >>> _status(Tally(files=50, errors=2, changed=12), 4.0)
    '12.5 images/s  25.0 % changed  2 errors'
    """
    rate = tally.files / max(seconds, 1e-9)
    words = [f"{rate:,.1f} images/s" if rate < 100 else f"{rate:,.0f} images/s"]
    if tally.answers:
        words.append(f"{tally.changed / tally.answers:.1%} changed".replace("%", " %"))
    if tally.errors:
        words.append(f"{tally.errors:,} error{'s'[: tally.errors != 1]}")
    return "  ".join(words)


@contextmanager
def shown_on(console: Console, total: int | None) -> Iterator[ClassifyBar]:
    """A bar for ``total`` files; None for one without an end."""
    first = [SpinnerColumn(), TextColumn("following")] if total is None else [TextColumn("classifying")]
    with Progress(
        *first,
        *([] if total is None else [BarColumn(bar_width=20)]),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        *([] if total is None else [TimeRemainingColumn()]),
        console=console,
    ) as progress:
        yield ClassifyBar(progress, progress.add_task("", total=total, status=""))


def _report(
    request: "ClassifyRequest", output: Output, stopped: int | None, facts: dict[str, Any]
) -> ClassifyReport:
    tally, seconds = output.tally, output.runs[-1].seconds or 0.0
    summary = {
        "out": str(request.out),
        "page": None if request.page is None else str(request.page),
        "sorted_into": None if request.sort_into is None else str(request.sort_into),
        **facts,
        "files": tally.files,
        "answers": tally.answers,
        "errors": tally.errors,
        "changed": tally.changed,
        "zero_shot_fallbacks": tally.fallbacks,
        "labels": {name: tally.labels[name] for name in sorted(tally.labels)},
        "new_files": output.new_files,
        "seconds": seconds,
        "files_per_second": round(output.new_files / seconds, 3) if seconds else None,
        "stopped": stopped is not None,
    }
    if request.watch:
        return ClassifyReport(summary, 0)
    return ClassifyReport(summary, (3 if tally.errors else 0) if stopped is None else stopped)
