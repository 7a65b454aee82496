"""``ramen classify`` without its command line: from files and class names to labels, a page, sorted files."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rich.console import Console

from ramen.serve.changes_page.page import PageSettings, write_page
from ramen.serve.classify_bar import shown_on
from ramen.serve.classify_local import ModelAnswering
from ramen.serve.classify_request import ClassifyRequest
from ramen.serve.labelling import ResultSource, label_files, recover
from ramen.serve.outputs.output import Output, open_output
from ramen.serve.outputs.record import Identity
from ramen.serve.result import Result
from ramen.serve.sorting import ClassFolders
from ramen.serve.watching import follow
from ramen.utils.stopping import StopRequest, stop_on_signals


class Answering(Protocol):
    """What answers for files: a model in this process, or a service."""

    @property
    def identity(self) -> Identity:
        """What its answers are made with; an output holds answers of one identity."""

    @property
    def state(self) -> str | None:
        """Where what is learned is kept, in the words of an output's record; None if nowhere."""

    def predictor(self, files: int) -> AbstractContextManager[ResultSource]:
        """What classifies, as long as a block lasts.

        Args:
            files: How many there are.
        """

    def heed(self, stop: StopRequest) -> None:
        """Let requests to stop that come from elsewhere count too; called once the state is open."""

    @property
    def processes(self) -> int | None:
        """How many processes answer together; None if this one does so alone."""

    def forget_unlearned(self, output: Output) -> int:
        """Remove rows of a killed run that are to be made again, once the state is open; says how many."""

    def notes(self, output: Output, files: Sequence[str], again: int) -> Iterable[str]:
        """What users should know before it starts.

        Args:
            output: What there is already.
            files: What is left to do.
            again: How many rows were removed to be made again.
        """

    def page_settings(self) -> PageSettings:
        """What the page says about how its results were made."""

    def summary(self) -> dict[str, Any]:
        """Facts for the summary of a run."""


@dataclass(frozen=True)
class ClassifyReport:
    """How a run ended.

    Attributes:
        summary: Plain values, for JSON.
        exit_code: 0, 3 if files failed, or that of the signal that stopped it.
    """

    summary: dict[str, Any]
    exit_code: int


def classify_files(request: ClassifyRequest, console: Console) -> ClassifyReport:
    """Classify files, or what is left to do of an earlier run.

    Args:
        request: What to do.
        console: Where to show progress.
    """
    request.check()
    return classify_with(request, console, _answering(request))


def classify_with(
    request: ClassifyRequest, console: Console, answers: AbstractContextManager[Answering]
) -> ClassifyReport:
    """Classify files, or what is left to do of an earlier run.

    Args:
        request: What to do; it has been checked.
        console: Where to show progress.
        answers: What answers, as long as a block lasts.
    """
    with ExitStack() as stack:
        answering = stack.enter_context(answers)
        output = stack.enter_context(
            open_output(
                request.out, answering.identity, state=answering.state, retry_failed=request.retry_failed
            )
        )
        files = request.photos.find(output.keys)
        predictor = stack.enter_context(answering.predictor(len(files)))
        again = answering.forget_unlearned(output)
        if again:
            files = request.photos.find(output.keys)
        say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
        stop = stack.enter_context(stop_on_signals(lambda: say("stopping after this batch")))
        answering.heed(stop)
        output.start(answering.processes)
        for words in (*_introduction(request, output, files), *answering.notes(output, files, again)):
            say(words)
        _label(request, predictor, output, files, stop, console, answering.identity.classes)
        output.finish()
        if request.page is not None:
            write_page(request.page, output, answering.page_settings())
        return _report(request, output, stop, answering.summary())


def _answering(request: ClassifyRequest) -> AbstractContextManager[Answering]:
    if request.server is None:
        return nullcontext(ModelAnswering(request))
    from ramen.serve.classify_server import service_answering

    return service_answering(request, request.server)


def _introduction(request: ClassifyRequest, output: Output, files: Sequence[str]) -> Iterable[str]:
    """What was found, in words, as far as it is not what everybody expects."""
    if output.cut:
        yield f"{output.path} ended in the middle of a row, which is written again"
    if output.before:
        yield f"{output.path} has {output.before:,} results already; files that are left: {len(files):,}"
    elif not files and not request.watch:
        yield "there are no images to classify"


def _label(
    request: ClassifyRequest,
    predictor: ResultSource,
    output: Output,
    files: Sequence[str],
    stop: StopRequest,
    console: Console,
    classes: Sequence[str],
) -> None:
    recovered = recover(predictor, output, files)
    folders = None
    if request.sort_into is not None:
        folders = ClassFolders(request.sort_into, classes, copy=request.copy)
        folders.place(output.results())  # a run that was killed may have left some out
    done = {result.key for result in recovered}
    left = [file for file in files if file not in done]
    if not left and not request.watch:
        return
    with shown_on(console, None if request.watch else len(left)) as bar:

        def after_batch(batch: Sequence[Result]) -> None:
            if folders is not None:
                folders.place(batch)
            bar.add(batch)

        incoming: Iterable[str] = left
        if request.watch:
            incoming = follow(lambda: request.photos.find(output.keys), request.interval, stop.event)
        try:
            label_files(predictor, incoming, output, stopped=lambda: stop.requested, after_batch=after_batch)
        finally:
            stop.event.set()  # whatever ended this: nobody waits for new files any more


def _report(
    request: ClassifyRequest, output: Output, stop: StopRequest, facts: dict[str, Any]
) -> ClassifyReport:
    tally, run = output.tally, output.runs[-1]
    seconds = run.seconds or 0.0
    stopped = stop.signal is not None
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
        "stopped": stopped,
    }
    if request.watch:
        code = 0
    elif stopped:
        code = stop.exit_code
    else:
        code = 3 if tally.errors else 0
    return ClassifyReport(summary, code)
