"""What experiments share: classifiers, data sets, streams, each loaded once."""

from collections.abc import Sequence
from typing import Any

import ramen.data.registry as datasets
from ramen.data.dataset import Dataset
from ramen.data.streams.stream import Stream, find_protocol, make_stream
from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.plan.values import plain
from ramen.models.by_name import load_model
from ramen.models.classifier import ZeroShotClassifier


class Resources:
    """Classifiers, data sets and streams; experiments that share one share its object."""

    def __init__(self) -> None:
        self._datasets: dict[str, Dataset] = {}
        self._streams: dict[str, Stream] = {}
        self._classifier: tuple[str, ZeroShotClassifier] | None = None  # only the last one: they are large

    def classifier(self, experiment: Experiment, classes: Sequence[str]) -> ZeroShotClassifier:
        """The classifier of an experiment."""
        e = experiment
        key = repr((e.model, e.templates, e.device, e.dtype, tuple(classes)))
        if self._classifier is None or self._classifier[0] != key:
            self._classifier = None  # free its memory before the next one is loaded
            same_names = datasets.describe(e.data).same_names
            loaded = load_model(e.model, classes, e.templates, e.device, e.dtype, allow_same_names=same_names)
            self._classifier = key, loaded
        return self._classifier[1]

    def stream(self, experiment: Experiment) -> Stream:
        """The stream of an experiment."""
        e = experiment
        key = repr((e.data, e.root, plain(e.data_options), e.protocol, plain(e.protocol_parameters), e.seed))
        if key not in self._streams:
            self._streams[key] = self._make_stream(e)
        return self._streams[key]

    def _make_stream(self, e: Experiment) -> Stream:
        options = dict(e.data_options)
        if not find_protocol(e.protocol).severities:
            return make_stream(e.protocol, self._dataset(e, options), e.seed, **e.protocol_parameters)
        if "severity" not in datasets.describe(e.data).options:
            raise ValueError(
                f"protocol {e.protocol!r} needs severities, which data set {e.data!r} does not have"
            )
        highest = options.pop("severity", 5)
        severities = {s: self._dataset(e, {**options, "severity": s}) for s in range(1, highest + 1)}
        return make_stream(e.protocol, severities, e.seed, **e.protocol_parameters)

    def _dataset(self, e: Experiment, options: dict[str, Any]) -> Dataset:
        key = repr((e.data, e.root, plain(options)))
        if key not in self._datasets:
            self._datasets[key] = datasets.load(e.data, e.root, **options)
        return self._datasets[key]
