"""The embedding of each class in each template, for methods that need them one by one."""

from torch import Tensor

from ramen.models.classifier import MissingPartError, ZeroShotClassifier


def template_embeddings(
    method: str, classifier: ZeroShotClassifier, templates: tuple[str, ...] | None
) -> Tensor:
    """Unit embeddings ``(C, templates, d)`` of the classes, in the classifier's own templates if not given.

    Raises:
        MissingPartError: They are not known, and the classifier has no text encoder.
    """
    if templates is None:
        found, wanted = classifier.template_embeddings, "every template"
    else:
        found, wanted = classifier.embed_templates(templates), f"templates {', '.join(map(repr, templates))}"
    if found is None:
        raise MissingPartError(
            f"method {method!r} needs the embeddings of {wanted}: give the ZeroShotClassifier (C, templates, "
            "d) embeddings (with templates=... if they are to be found by name), or a text encoder "
            "(encode_text=...) and the method templates=..."
        )
    return found
