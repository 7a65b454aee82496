"""CLIPArTT: each batch adapts to prompts that name the three likeliest classes of each image.

Vargas Hakim et al., "CLIPArTT: Adaptation of CLIP to New Domains at Test Time", WACV 2025.
"""

from torch import Tensor

from ramen.methods._base import check_classifier
from ramen.methods._contrastive import Contrastive, Steps
from ramen.methods._info import MethodInfo
from ramen.methods._registry import register
from ramen.models import prompts
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.models.text_cache import TextCache
from ramen.utils import checks


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
class Clipartt(Contrastive):
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
        (self.template,) = prompts.check_templates([template])
        encode_text, like = check_classifier(classifier).encode_text, classifier.class_embeddings
        if encode_text is None:
            raise MissingPartError(
                "method 'clipartt' writes prompts and needs a text encoder: give the ZeroShotClassifier "
                "encode_text=..."
            )
        super().__init__(
            classifier,
            prompts.embed_classes(encode_text, classifier.classes, [self.template])[:, 0].to(like),
            lr=lr,
            temperature=temperature,
            detach_targets=detach_targets,
            statistics=statistics,
            seed=seed,
        )
        self.topk = checks.integer("topk", topk, 1, classifier.num_classes, at_most="num_classes")
        self.iterations = checks.integer("iterations", iterations, 1)
        self.cached_prompts = checks.integer("cached_prompts", cached_prompts, 0)
        self._prompts = TextCache(encode_text, self.template, self.cached_prompts, like)

    def walk(self, steps: Steps) -> None:
        """New prompts for the weights so far, then a step."""
        for _ in range(self.iterations):
            steps.take(self._prompt_of_each)

    def _prompt_of_each(self, embeddings: Tensor) -> Tensor:
        """A prompt that names an image's likeliest classes, the likeliest first.

        ``tolist`` is the one time in an iteration that the host waits.
        """
        names = self.classifier.classes
        likeliest = (embeddings @ self.texts.T).topk(self.topk, dim=1).indices.tolist()
        return self._prompts([" or ".join(names[c] for c in row) for row in likeliest])

    def passes(self) -> tuple[int, int]:
        """One of each an iteration, and one forward pass to predict."""
        return self.iterations + 1, self.iterations
