"""``ramen classify`` without its command line: from files and class names to labels, a page, sorted files."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from ramen.experiments.analysis import paper
from ramen.experiments.plan.values import plain
from ramen.experiments.run.provenance import versions
from ramen.images.decoding import DEFAULT_FORMATS, MAX_PIXELS, DecodingSettings
from ramen.methods._base import Method
from ramen.methods._registry import create
from ramen.models import prompts
from ramen.models.by_name import load_model
from ramen.models.classifier import ZeroShotClassifier
from ramen.serve.changes_page.page import PageSettings, write_page
from ramen.serve.classify_bar import shown_on
from ramen.serve.labelling import forget_unlearned, label_files, recover
from ramen.serve.outputs.output import Output, check_output, open_output
from ramen.serve.outputs.record import Identity
from ramen.serve.photos import Photos
from ramen.serve.predictor import Predictor
from ramen.serve.result import Result
from ramen.serve.sorting import ClassFolders
from ramen.serve.stopping import StopRequest, stop_on_signals
from ramen.serve.watching import follow
from ramen.utils.devices import device_and_dtype_names

TINY = "tiny"
_FEW = 500  # files for which starting worker processes is not worth it
_MOST_WORKERS = 8


class MissingWeightsError(RuntimeError):
    """A model's weights cannot be had."""


@dataclass(frozen=True)
class ClassifyRequest:
    """What to classify, with what, into what.

    Attributes:
        photos: The files.
        classes: Class names.
        out: The output; its suffix is its format.
        model: A form of ``ramen.models.by_name``.
        method: A method's name.
        parameters: Of the method, in place of its own choices.
        templates: A set of prompt templates, or templates.
        device: Where to compute; by default a GPU if there is one.
        dtype: Of the encoder's weights; by default float16 on a GPU.
        batch: Files per batch.
        workers: Processes that decode; by default as many as help.
        state: A folder, or a URL, that keeps what is learned.
        page: Where to write the page of changes.
        sort_into: Where to sort files into folders of classes.
        copy: Copy files there instead of linking to them.
        watch: Follow folders until somebody stops it.
        interval: Seconds between two looks at folders that are followed.
        retry_failed: Try files again that failed in an earlier run.
        formats: Image formats that are accepted.
        max_pixels: The most pixels that an image may have.
        orient: Turn images as their EXIF orientation says.
    """

    photos: Photos
    classes: Sequence[str]
    out: Path
    model: str = TINY
    method: str = "ramen"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    templates: str | tuple[str, ...] = "ensemble"
    device: str | None = None
    dtype: str | None = None
    batch: int = 32
    workers: int | None = None
    state: str | None = None
    page: Path | None = None
    sort_into: Path | None = None
    copy: bool = False
    watch: bool = False
    interval: float = 1.0
    retry_failed: bool = False
    formats: tuple[str, ...] = DEFAULT_FORMATS
    max_pixels: int = MAX_PIXELS
    orient: bool = True

    def check(self) -> None:
        """ValueError for what can be known to be wrong before a model is loaded."""
        check_output(self.out)
        for name in prompts.check_classes(self.classes):
            if name != name.encode(errors="ignore").decode():  # bytes that are no UTF-8
                raise ValueError(f"classes must be valid Unicode text, got {name!r}")
        prompts.check_templates(self.templates)
        self.decoding()
        if self.watch and not self.photos.folders:
            raise ValueError("--watch follows folders: at least one of PHOTOS must be a folder")
        if self.copy and self.sort_into is None:
            raise ValueError("--copy needs --sort-into, which says where to copy to")

    def decoding(self) -> DecodingSettings:
        """How files are read."""
        return DecodingSettings(self.formats, self.max_pixels, orient=self.orient)


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
    classifier = load_classifier(request)
    method = create(request.method, classifier, **request.parameters)
    with ExitStack() as stack:
        output = stack.enter_context(
            open_output(
                request.out,
                _identity(request, classifier),
                state=_full_name(request.state),
                retry_failed=request.retry_failed,
            )
        )
        files = request.photos.find(output.keys)
        predictor = stack.enter_context(_predictor(request, method, len(files)))
        again = forget_unlearned(output, method.images_seen, request.batch)
        if again:
            files = request.photos.find(output.keys)
        say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
        stop = stack.enter_context(stop_on_signals(lambda: say("stopping after this batch")))
        output.start()
        for words in _introduction(request, output, files, again):
            say(words)
        _label(request, predictor, output, files, stop, console)
        output.finish()
        if request.page is not None:
            write_page(request.page, output, page_settings(request, method, versions()))
        return _report(request, output, stop)


class ModelChoice(Protocol):
    """A model, and the classes that it is for; the fields are those of a ``ClassifyRequest``."""

    @property
    def model(self) -> str:
        """A form of ``ramen.models.by_name``."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names."""

    @property
    def templates(self) -> str | tuple[str, ...]:
        """A set of prompt templates, or templates."""

    @property
    def device(self) -> str | None:
        """Where to compute."""

    @property
    def dtype(self) -> str | None:
        """Of the encoder's weights."""


def load_classifier(request: ModelChoice) -> ZeroShotClassifier:
    """The model for the classes; MissingWeightsError if its weights can neither be found nor downloaded."""
    device, dtype = device_and_dtype_names(request.device, request.dtype)
    try:
        return load_model(request.model, request.classes, request.templates, device, dtype)
    except (ValueError, ConnectionError) as error:
        cause = error if isinstance(error, ConnectionError) else error.__cause__
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise MissingWeightsError(
            f"the weights of {request.model} cannot be loaded: {cause}\n"
            "They are downloaded when they are first used, which needs a network. Without one, copy a "
            "checkpoint to this machine and use --model ARCH/FILE or local-dir:FOLDER (`ramen models list` "
            f"explains the forms), or try --model {TINY}, which is included and knows drawings only."
        ) from error


def _full_name(state: str | None) -> str | None:
    """The same for the same folder, wherever the command runs; URLs stay as they are."""
    return state if state is None or "://" in state else os.path.abspath(os.path.expanduser(state))


def _identity(request: ClassifyRequest, classifier: ZeroShotClassifier) -> Identity:
    return Identity(
        model=request.model,
        weights=classifier.fingerprint()["encoder"],
        classes=tuple(classifier.classes),
        templates=tuple(classifier.templates or ()),
        method=request.method,
        parameters=plain(request.parameters),
        orient=request.orient,
    )


def _predictor(request: ClassifyRequest, method: Method, files: int) -> Predictor:
    workers = request.workers
    if workers is None:
        workers = 0 if request.watch or files < _FEW else min(_MOST_WORKERS, (os.cpu_count() or 1) - 1)
    return Predictor(
        method,
        store=request.state,
        batch_size=request.batch,
        max_delay=request.interval if request.watch else None,  # a batch must not wait for ever
        workers=workers,
        formats=request.formats,
        max_pixels=request.max_pixels,
        orient=request.orient,
    )


def _introduction(
    request: ClassifyRequest, output: Output, files: Sequence[str], again: int
) -> Iterable[str]:
    """What was found, in words, as far as it is not what everybody expects."""
    if output.cut:
        yield f"{output.path} ended in the middle of a row, which is written again"
    if again:
        yield f"{request.state} had not learned from the last {again:,} results, which are made again"
    if output.before:
        yield f"{output.path} has {output.before:,} results already; files that are left: {len(files):,}"
        if request.state is None and files:
            yield "what was learned then is lost: only --state DIR keeps it from one run to the next"
    elif not files and not request.watch:
        yield "there are no images to classify"


def _label(
    request: ClassifyRequest,
    predictor: Predictor,
    output: Output,
    files: Sequence[str],
    stop: StopRequest,
    console: Console,
) -> None:
    recovered = recover(predictor, output, files)
    folders = None
    if request.sort_into is not None:
        folders = ClassFolders(request.sort_into, predictor.method.classifier.classes, copy=request.copy)
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


def page_settings(
    request: ClassifyRequest, method: Method, installed: Mapping[str, str | None]
) -> PageSettings:
    """What the page says about how its results were made."""
    classifier = method.classifier
    facts = {
        "prompt templates": "; ".join(classifier.templates or ()),
        "weights": f"sha256 {classifier.fingerprint()['encoder']}",
        "device": f"{classifier.device}, {str(classifier.dtype).removeprefix('torch.')}",
        "files per batch": f"{request.batch:,}",
        "state": request.state or "none: what is learned ends with the run",
        "versions": ", ".join(f"{name} {version}" for name, version in installed.items() if version),
    }
    return PageSettings(
        output=request.out,
        model=request.model,
        method=paper.title(request.method),
        classes=classifier.classes,
        facts=facts,
        parameters={name: str(value) for name, value in method.parameters.items()},
        chosen=method.parameters.why,
        decoding=request.decoding(),
    )


def _report(request: ClassifyRequest, output: Output, stop: StopRequest) -> ClassifyReport:
    tally, run = output.tally, output.runs[-1]
    seconds = run.seconds or 0.0
    stopped = stop.signal is not None
    summary = {
        "out": str(request.out),
        "page": None if request.page is None else str(request.page),
        "sorted_into": None if request.sort_into is None else str(request.sort_into),
        "state": request.state,
        "model": request.model,
        "method": request.method,
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
