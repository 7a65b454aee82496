"""What all checks are given: the model, where it computes, and how long a check may take."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ramen
from ramen.data.drawings.shapes import OBJECTS
from ramen.models.names import load_model
from ramen.serve.engine.engine import Engine
from ramen.serve.engine.in_thread import EngineInThread
from ramen.serve.settings import EngineSettings

CLASSES = tuple(OBJECTS)


@dataclass(frozen=True)
class CheckOptions:
    """Settings of a run."""

    folder: Path  # for states and logs
    model: str = "tiny"  # a form that `ramen models list` shows
    device: str = "cpu"
    dtype: str = "float32"
    max_batch: int = 32
    seconds: float = 10.0  # of a load that has no length of its own
    full: bool = False  # whether to run the long forms
    processes: int = 1  # that send load in the measurements of speed
    workers: int | None = None  # of servers; None for their default
    old: Path | None = None  # another checkout, for the check that measures it beside this one

    @cached_property
    def classifier(self) -> ramen.ZeroShotClassifier:
        """The model in this process."""
        return load_model(self.model, CLASSES, device=self.device, dtype=self.dtype)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width that the encoder needs."""
        size = self.classifier.image_size
        assert size is not None
        return size

    def engine(self, method: str = "ramen", **settings: Any) -> EngineInThread:
        """An engine in this process."""
        chosen = EngineSettings(**{"max_batch": self.max_batch, **settings})
        return EngineInThread(Engine(self.classifier, chosen, name=self.model, method=method))

    def pick(self, small: int, full: int) -> int:
        """A number for the short or the long form of a check."""
        return full if self.full else small
