"""``ramen classify`` with a model in this process."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ramen.experiments.analysis import paper
from ramen.experiments.plan.values import plain
from ramen.experiments.run.provenance import versions
from ramen.methods._registry import create
from ramen.serve.changes_page.page import PageSettings
from ramen.serve.classify_request import ClassifyRequest
from ramen.serve.labelling import ResultSource, forget_unlearned
from ramen.serve.model_loading import load_classifier
from ramen.serve.outputs.output import Output
from ramen.serve.outputs.record import Identity
from ramen.serve.predictor import Predictor
from ramen.utils.peers import Group
from ramen.utils.stopping import StopRequest
from ramen.utils.torchrun import local_processes

_Value = TypeVar("_Value")
_FEW = 500  # files for which starting worker processes is not worth it
_MOST_WORKERS = 8


def _alone(work: Callable[[], _Value], what: str) -> _Value:
    return work()


class ModelAnswering:
    """Answers with a model that it loads.

    Args:
        request: What to do.
        group: Processes that answer together.
        attempt: Does what can fail in one of them, so that all of them know.

    Attributes:
        identity: What the answers are made with.
        state: Where what is learned is kept.
        processes: How many answer together; None for one without a group.
    """

    def __init__(
        self,
        request: ClassifyRequest,
        group: Group = None,
        attempt: Callable[[Callable[[], Any], str], Any] = _alone,
    ) -> None:
        self._request = request
        classifier = attempt(lambda: load_classifier(request), "loading the model")
        given = dict(request.parameters) if group is None else {**request.parameters, "group": group}
        self._method = attempt(lambda: create(request.method, classifier, **given), "creating the method")
        self.processes = None if self._method.peers is None else self._method.peers.size
        self.state: str | None = full_name(request.state)
        self.identity = Identity(
            model=request.model,
            weights=classifier.fingerprint()["encoder"],
            classes=tuple(classifier.classes),
            templates=tuple(classifier.templates or ()),
            method=request.method,
            parameters=plain(request.parameters),
            orient=request.orient,
        )

    def predictor(self, files: int) -> AbstractContextManager[ResultSource]:
        """What classifies, as long as a block lasts.

        Args:
            files: How many there are.
        """
        return self.open_predictor(files)

    def open_predictor(self, files: int) -> Predictor:
        """A predictor, whose state is read now.

        Args:
            files: How many there are: worker processes are not worth it for a few.
        """
        request, workers = self._request, self._request.workers
        if workers is None:
            own = files / (self.processes or 1)
            cores = (os.cpu_count() or 1) // local_processes()
            workers = 0 if request.watch or own < _FEW else max(0, min(_MOST_WORKERS, cores - 1))
        return Predictor(
            self._method,
            store=request.state,
            batch_size=request.batch_size,
            max_delay=request.interval if request.watch else None,  # a batch must not wait for ever
            workers=workers,
            formats=request.formats,
            max_pixels=request.max_pixels,
            orient=request.orient,
        )

    def heed(self, stop: StopRequest) -> None:
        """Nobody else can ask."""

    def forget_unlearned(self, output: Output) -> int:
        """Remove the last rows of a killed run if the state has not learned from them."""
        return forget_unlearned(output, self._method.images_seen, self._request.batch_size)

    def notes(self, output: Output, files: Sequence[str], again: int) -> Iterable[str]:
        """What became of what earlier runs have learned."""
        if again:
            state = self._request.state
            yield f"{state} had not learned from the last {again:,} results, which are made again"
        if output.before and files and self.state is None:
            yield "what was learned then is lost: only --state DIR keeps it from one run to the next"

    def page_settings(self) -> PageSettings:
        """What the page says about how its results were made."""
        request, method, classifier = self._request, self._method, self._method.classifier
        installed = versions()
        facts = {
            "prompt templates": "; ".join(classifier.templates or ()),
            "weights": f"sha256 {classifier.fingerprint()['encoder']}",
            "device": f"{classifier.device}, {str(classifier.dtype).removeprefix('torch.')}",
            "files per batch": f"{request.batch_size:,}",
            **({} if self.processes is None else {"processes": f"{self.processes:,}"}),
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

    def summary(self) -> dict[str, Any]:
        """Facts for the summary of a run."""
        request = self._request
        processes = {} if self.processes is None else {"processes": self.processes}
        return {"state": request.state, "model": request.model, "method": request.method, **processes}


def full_name(state: str | None) -> str | None:
    """The same for the same folder, wherever the command runs; URLs stay as they are."""
    return state if state is None or "://" in state else os.path.abspath(os.path.expanduser(state))
