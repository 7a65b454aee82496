"""What tests of methods with random views share: embeddings of views by plain modules, and checks."""

from torch import Tensor

import ramen
from tests.helpers.embedding_streams import tower_features
from tests.oracles.torchvision_views import views_with_torchvision

SCALE = 30.0


def view_embeddings(kind: str, image: Tensor, views: int, seed: int = 0) -> Tensor:
    """Unit embeddings ``(views, d)`` of the views of one image, in fp64."""
    return tower_features(kind, views_with_torchvision(image, views, seed=seed))


def entropy(logits: Tensor) -> float:
    """Of one row."""
    p = logits.softmax(0)
    return -sum(float(x) * float(x.log()) for x in p if x > 0)


def by_entropy(logits: Tensor) -> list[int]:
    """The views, the surest first."""
    return sorted(range(len(logits)), key=lambda view: entropy(logits[view]))


def solve(clf: ramen.ZeroShotClassifier, name: str, embeddings: Tensor, **parameters: object) -> Tensor:
    """Logits of images whose views have these embeddings ``(B, views, d)``."""
    method = ramen.create(name, clf, views=embeddings.shape[1], **parameters)
    return method.from_views(embeddings.double())
