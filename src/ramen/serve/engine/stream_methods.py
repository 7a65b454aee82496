"""Methods for streams: what one of them chose, the others with the same classes are given."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ramen.methods import Method
from ramen.methods._registry import create, describe
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.serve.engine.errors import BadRequestError

_CLASS_LISTS = 256  # of which classifiers are kept
_COSTLY = ("lr", "guard")  # what is chosen by passes through the encoder, or depends on what was


class StreamMethods:
    """Creates a fresh method for a stream.

    Args:
        classifier: The model with its own classes.
        method: The name of the method.
        parameters: Of the method.
        stream_memory: Bytes that the memory of one stream may grow to, for methods that can be told.
    """

    def __init__(
        self, classifier: ZeroShotClassifier, method: str, parameters: Mapping[str, Any], stream_memory: int
    ) -> None:
        self.classifier, self.method = classifier, method
        known = describe(method).defaults
        ours = {"visibility": "causal", "memory_budget": stream_memory}
        self._parameters = {name: value for name, value in ours.items() if name in known} | dict(parameters)
        self._recipes: OrderedDict[tuple[str, ...] | None, tuple[ZeroShotClassifier, dict[str, Any]]] = (
            OrderedDict()
        )
        self._lock = threading.Lock()
        self._own = self._recipe(None)

    def create(self, classes: tuple[str, ...] | None) -> Method:
        """A method for these classes, or for those of the model; BadRequestError if that cannot be."""
        classifier, parameters = self._own if classes is None else self._recipe(classes)
        return create(self.method, classifier, **parameters)

    def classes_of(self, classes: tuple[str, ...] | None) -> tuple[str, ...]:
        """The names of a stream's classes."""
        return self.classifier.classes if classes is None else classes

    def own_classes(self, classes: tuple[str, ...]) -> tuple[str, ...] | None:
        """``classes``, or None if they are those of the model."""
        return None if classes == self.classifier.classes else classes

    def _recipe(self, classes: tuple[str, ...] | None) -> tuple[ZeroShotClassifier, dict[str, Any]]:
        with self._lock:  # also: one thread at a time chooses parameters and embeds classes
            if classes in self._recipes:
                self._recipes.move_to_end(classes)
                return self._recipes[classes]
            recipe = self._new_recipe(classes)
            self._recipes[classes] = recipe
            if len(self._recipes) > _CLASS_LISTS:
                self._recipes.popitem(last=False)
            return recipe

    def _new_recipe(self, classes: tuple[str, ...] | None) -> tuple[ZeroShotClassifier, dict[str, Any]]:
        classifier = self.classifier if classes is None else self._with_classes(classes)
        template = create(self.method, classifier, **self._parameters)
        chosen = {name: template.parameters[name] for name in _COSTLY if name in template.chosen}
        return classifier, self._parameters | chosen

    def _with_classes(self, classes: tuple[str, ...]) -> ZeroShotClassifier:
        try:
            return self.classifier.with_classes(classes)
        except MissingPartError as error:
            raise BadRequestError(f"a stream of this model cannot have classes of its own: {error}") from None
        except ValueError as error:
            raise BadRequestError(f"classes: {error}") from None
