"""Methods that are given what a pass has seen."""

from torch import Tensor

from ramen.methods import Answer, Method, Seen
from ramen.methods._passes import drive


def answer_of(method: Method, embeddings: Tensor, usable: Tensor) -> Answer:
    """What a method makes of one forward pass with these embeddings, without one."""
    return drive(method.adapt(embeddings, usable), lambda wanted: Seen(embeddings))
