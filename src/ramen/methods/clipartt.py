"""CLIPArTT: each batch adapts to prompts that name the three likeliest classes of each image.

Vargas Hakim et al., "CLIPArTT: Adaptation of CLIP to New Domains at Test Time", WACV 2025.
"""

from functools import partial

from torch import Tensor

from ramen import checks, prompts
from ramen.adaptation import joint_gradient, refuse_overflowing
from ramen.classifier import ZeroShotClassifier
from ramen.methods.base import Answer, Method, MethodInfo
from ramen.methods.registry import register
from ramen.objectives import contrastive_loss
from ramen.optim import AdamState, adam_step
from ramen.statistics import choose, of_batch
from ramen.text_cache import TextCache


@register(
    MethodInfo(
        name="clipartt",
        title="CLIPArTT: adaptation to prompts made of the likeliest classes",
        venue="WACV 2025",
        paper="https://arxiv.org/abs/2405.00754",
        updates="weight and bias of all norm layers, for one batch; then the pretrained ones again",
        predicts_with="a last forward pass after the updates, with a single template",
        batch_dependent=True,
        forwards=11,
        backwards=10,
        notes=(
            "stated by the Ramen paper: Adam, lr 1e-3, three classes a prompt, ten iterations, for all data "
            "sets; prompts of its own instead of the seven templates",
            "from CLIPArTT's code: 'a photo of a {}' without full stop for classes, prompts and prediction, "
            "new prompts at every iteration, gradients through the targets of the loss too "
            "(detach_targets=True takes them as constant), weights and Adam afresh for every batch",
            "decided here: BatchNorm keeps its running statistics, as in Ramen's code; CLIPArTT's code uses "
            "the batch's (statistics='batch')",
            "decided here: underscores in class names are spaces, as for every method; CLIPArTT's code "
            "leaves them",
            "one forward pass gives both prompts and loss; CLIPArTT's code makes two at the same weights, so "
            "its count is 21 forward and 10 backward, with equal results",
            "a prompt is embedded when it first occurs; CLIPArTT's code embeds all of them in every "
            "iteration, and computes gradients of the text tower that it does not use",
        ),
    )
)
class Clipartt(Method):
    """Contrastive steps on each batch, with a prompt for each image that names its likeliest classes.

    It keeps nothing of the stream: every batch starts from the pretrained weights. What is kept are the
    embeddings of prompts, which follow from the class names: ``cached_prompts`` of them at most.

    Args:
        classifier: Must have a text encoder.
        lr: Adam's step size; 1e-3 in the paper for all data sets, as are the next two.
        topk: K, how many classes a prompt names.
        iterations: Steps a batch.
        template: For the classes and, with "c1 or c2 or c3" in the place of one, for the prompts.
        temperature: Of the targets of the loss; 0.01 belongs to a logit scale of 100, CLIP's.
        detach_targets: No gradient through the targets of the loss.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the present batch's usable images.
        cached_prompts: How many embeddings of prompts to keep; with width 512 each takes 2 KiB.
        seed: Has no effect.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 1e-3,
        topk: int = 3,
        iterations: int = 10,
        *,
        template: str = prompts.SINGLE_WITHOUT_PERIOD[0],
        temperature: float = 0.01,
        detach_targets: bool = False,
        statistics: str = "source",
        cached_prompts: int = 65_536,
        seed: int = 0,
    ) -> None:
        super().__init__(classifier, seed=seed)
        self.lr = checks.number("lr", lr, 0)
        self.topk = checks.integer("topk", topk, 1, classifier.num_classes, at_most="num_classes")
        self.iterations = checks.integer("iterations", iterations, 1)
        (self.template,) = prompts.check_templates([template])
        self.temperature = checks.number("temperature", temperature, 0, exclusive=True)
        self.detach_targets = checks.flag("detach_targets", detach_targets)
        self.statistics = choose(statistics, classifier.encoder.base_statistics)
        self.cached_prompts = checks.integer("cached_prompts", cached_prompts, 0)
        if classifier.encode_text is None:
            raise ValueError(
                "method 'clipartt' writes prompts and needs a text encoder: give the ZeroShotClassifier "
                "encode_text=..."
            )
        encode_text, like = classifier.encode_text, classifier.class_embeddings
        self._classes = prompts.embed_classes(encode_text, classifier.classes, [self.template])[:, 0].to(like)
        self._prompts = TextCache(encode_text, self.template, self.cached_prompts, like)

    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> Answer:
        """Adapt to the batch, predict it, forget."""
        clf = self.classifier
        affine, first = self._adapted(images, usable)
        encoded = images
        if not affine.isfinite().all():
            encoded, usable = refuse_overflowing(clf, images, usable)
            affine, _ = self._adapted(encoded, usable)
        embeddings = clf.encode(encoded, affine, statistics=of_batch(self.statistics, usable))
        logits = clf.logit_scale * embeddings @ self._classes.T
        if self.statistics == "source":
            return Answer(logits, clf.logits(first), usable)
        return Answer(logits, lambda: clf.logits(clf.encode(images)), usable)

    def _adapted(self, images: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """The weights for this batch; beside them the first pass's embeddings."""
        clf, statistics = self.classifier, of_batch(self.statistics, usable)
        affine, first = clf.encoder.base, None
        moments = AdamState.zero(affine)
        for _ in range(self.iterations):
            loss = partial(self._loss, usable=usable)
            embeddings, gradient = joint_gradient(clf, images, affine, loss, statistics)
            affine, moments = adam_step(affine, gradient, moments, self.lr)
            first = embeddings if first is None else first
        assert first is not None
        return affine, first

    def _loss(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """Each image against a prompt that names its likeliest classes, the likeliest first."""
        likeliest = (embeddings.detach() @ self._classes.T).topk(self.topk, dim=1).indices
        return contrastive_loss(
            embeddings,
            self._embedded(likeliest),
            usable,
            self.classifier.logit_scale,
            temperature=self.temperature,
            detach_targets=self.detach_targets,
        )

    def _embedded(self, likeliest: Tensor) -> Tensor:
        """The prompts' embeddings; ``tolist`` is the one time in an iteration that the host waits."""
        names = self.classifier.classes
        return self._prompts([" or ".join(names[c] for c in row) for row in likeliest.tolist()])

    def passes(self) -> tuple[int, int]:
        """One of each an iteration, and one forward pass to predict."""
        return self.iterations + 1, self.iterations
