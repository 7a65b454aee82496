"""WATT-S: each batch adapts to one template after the other, and the weights it passes are averaged.

Osowiechi et al., "WATT: Weight Average Test-Time Adaptation of CLIP", NeurIPS 2024.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ramen import checks, prompts
from ramen.adaptation import joint_gradient, refuse_overflowing
from ramen.classifier import ZeroShotClassifier
from ramen.methods.base import Answer, Method, MethodInfo
from ramen.methods.registry import register
from ramen.objectives import contrastive_loss
from ramen.optim import AdamState, adam_step
from ramen.statistics import choose, of_batch


@register(
    MethodInfo(
        name="watt",
        title="WATT-S: weight averaging over templates, sequential",
        venue="NeurIPS 2024",
        paper="https://arxiv.org/abs/2406.13875",
        updates="weight and bias of all norm layers, for one batch; then the pretrained ones again",
        predicts_with="a last forward pass with the averaged weights",
        batch_dependent=True,
        forwards=71,
        backwards=70,
        notes=(
            "stated by the Ramen paper: Adam, lr 1e-3, two steps a template, five rounds, for all data sets; "
            "seven templates; results for a ResNet",
            "from WATT's code: the contrastive loss of CLIPArTT, gradients through its targets too "
            "(detach_targets=True takes them as constant), Adam's moments kept from template to template and "
            "round to round, weights and moments afresh for every batch, prediction with the averaged "
            "templates",
            "decided here: the classifier's own templates, seven by default; WATT's code has eight, of which "
            "two without full stop (templates='watt')",
            "decided here: BatchNorm keeps its running statistics and its weight and bias adapt; WATT's code "
            "knows LayerNorm only. statistics='batch' takes the batch's, as CLIPArTT's code does",
            "one forward pass gives both pseudo-classes and loss; WATT's code makes two at the same weights, "
            "so its count is 141 forward and 70 backward, with equal results",
            "the passes are those of seven templates; a step costs one of each",
        ),
    )
)
class Watt(Method):
    """Contrastive steps on each batch, template after template, and averages of the weights reached.

    It keeps nothing of the stream: every batch starts from the pretrained weights.

    Args:
        classifier: Must have an embedding for each class and template, or a text encoder.
        lr: Adam's step size; 1e-3 in the paper for all data sets, as are the next two.
        steps: L, steps with a template before the next one's turn.
        rounds: M, how often all templates have their turn; after each round the weights are averaged.
        templates: The classifier's own if not given; else a name in ``ramen.prompts.TEMPLATE_SETS`` ("watt"
            for the eight of WATT's code) or strings with ``{}`` for the class name.
        temperature: Of the targets of the loss; 0.01 belongs to a logit scale of 100, CLIP's.
        detach_targets: No gradient through the targets of the loss.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the present batch's usable images.
        seed: Has no effect.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 1e-3,
        steps: int = 2,
        rounds: int = 5,
        *,
        templates: str | Sequence[str] | None = None,
        temperature: float = 0.01,
        detach_targets: bool = False,
        statistics: str = "source",
        seed: int = 0,
    ) -> None:
        super().__init__(classifier, seed=seed)
        self.lr = checks.number("lr", lr, 0)
        self.steps = checks.integer("steps", steps, 1)
        self.rounds = checks.integer("rounds", rounds, 1)
        self.templates = None if templates is None else prompts.check_templates(templates)
        self.temperature = checks.number("temperature", temperature, 0, exclusive=True)
        self.detach_targets = checks.flag("detach_targets", detach_targets)
        self.statistics = choose(statistics, classifier.encoder.base_statistics)
        embeddings = _template_embeddings(classifier, self.templates)
        self._texts = embeddings.transpose(0, 1)  # (templates, C, d)
        self._average = prompts.average_templates(embeddings)

    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> Answer:
        """Adapt to the batch, predict it, forget."""
        clf = self.classifier
        affine, first = self._adapted(images, usable)
        encoded = images
        if not affine.isfinite().all():
            encoded, usable = refuse_overflowing(clf, images, usable)
            affine, _ = self._adapted(encoded, usable)
        embeddings = clf.encode(encoded, affine, statistics=of_batch(self.statistics, usable))
        logits = clf.logit_scale * embeddings @ self._average.T
        if self.statistics == "source":
            return Answer(logits, clf.logits(first), usable)
        return Answer(logits, lambda: clf.logits(clf.encode(images)), usable)

    def _adapted(self, images: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """The weights for this batch; beside them the first pass's embeddings."""
        clf, statistics = self.classifier, of_batch(self.statistics, usable)
        affine, first = clf.encoder.base, None
        moments = AdamState.zero(affine)
        for _ in range(self.rounds):
            reached = []
            for texts in self._texts:
                for _ in range(self.steps):
                    loss = partial(self._loss, texts=texts, usable=usable)
                    embeddings, gradient = joint_gradient(clf, images, affine, loss, statistics)
                    affine, moments = adam_step(affine, gradient, moments, self.lr)
                    first = embeddings if first is None else first
                reached.append(affine)
            affine = torch.stack(reached).mean(0)
        assert first is not None
        return affine, first

    def _loss(self, embeddings: Tensor, texts: Tensor, usable: Tensor) -> Tensor:
        """Each image against the text of the class it is taken for, in one template."""
        pseudo_labels = (embeddings.detach() @ texts.T).argmax(1)
        return contrastive_loss(
            embeddings,
            texts[pseudo_labels],
            usable,
            self.classifier.logit_scale,
            temperature=self.temperature,
            detach_targets=self.detach_targets,
        )

    def passes(self) -> tuple[int, int]:
        """One of each a step, and one forward pass to predict."""
        steps = self.rounds * len(self._texts) * self.steps
        return steps + 1, steps


def _template_embeddings(classifier: ZeroShotClassifier, templates: tuple[str, ...] | None) -> Tensor:
    if templates is None:
        found, wanted = classifier.template_embeddings, "every template"
    else:
        found, wanted = classifier.embed_templates(templates), f"templates {', '.join(map(repr, templates))}"
    if found is None:
        raise ValueError(
            f"method 'watt' needs the embeddings of {wanted}: give the ZeroShotClassifier (C, templates, d) "
            "embeddings (with templates=... if they are to be found by name), or a text encoder "
            "(encode_text=...) and the method templates=..."
        )
    return found
