"""CLIPArTT: each batch adapts to prompts that name the three likeliest classes of each image.

Vargas Hakim et al., "CLIPArTT: Adaptation of CLIP to New Domains at Test Time", WACV 2025.
"""

from collections.abc import Generator

from torch import Tensor

from ramen.methods._contrastive import Contrastive, Walk
from ramen.methods._passes import Pass, Seen
from ramen.methods._registry import MethodInfo, field, register
from ramen.models import prompts
from ramen.models.classifier import MissingPartError
from ramen.models.text import TextCache
from ramen.utils import checks


@register(
    MethodInfo(
        name="clipartt",
        title="CLIPArTT: adaptation to prompts made of the likeliest classes",
        venue="WACV 2025",
        paper="https://arxiv.org/abs/2405.00754",
        updates="weight and bias of all norm layers, for one batch; then reset to the pretrained ones",
        predicts_with="a last forward pass after the updates, with a single template",
        batch_dependent=True,
        forwards=11,
        backwards=10,
        notes=(
            "from the Ramen paper: Adam, lr 1e-3, three classes per prompt, ten iterations, for all data "
            "sets; its own prompts instead of the seven templates",
            "from CLIPArTT's code: 'a photo of a {}' without a full stop for classes, prompts and "
            "prediction, new prompts in every iteration, gradients through the loss's targets too "
            "(detach_targets=True treats them as constant), fresh weights and Adam for every batch",
            "decided here: BatchNorm keeps its running statistics, as in Ramen's code; CLIPArTT's code uses "
            "the batch's (statistics='batch')",
            "decided here: underscores in class names become spaces, as for every method; CLIPArTT's code "
            "leaves them",
            "one forward pass gives both prompts and loss; CLIPArTT's code runs two at the same weights, so "
            "it counts 21 forward and 10 backward passes, with equal results",
            "a prompt is embedded when it first occurs; CLIPArTT's code embeds all of them in every "
            "iteration, and computes gradients of the text tower that it does not use",
        ),
    )
)
class Clipartt(Contrastive):
    """Take contrastive steps on each batch, with one prompt per image that names its likeliest classes.

    It keeps no state between batches: every batch starts from the pretrained weights. It only caches
    embeddings of prompts, which depend on the class names alone: at most ``cached_prompts`` of them.
    """

    topk: int = field(3, ge=1, doc="K, how many classes a prompt names; the paper's for all data sets.")
    iterations: int = field(10, ge=1, doc="Steps per batch; likewise.")
    template: str = field(
        prompts.SINGLE_WITHOUT_PERIOD[0],
        doc='For the classes and, with "c1 or c2 or c3" in place of a class, for the prompts.',
    )
    cached_prompts: int = field(
        65_536, ge=0, doc="How many prompt embeddings to keep; with width 512 each takes 2 KiB."
    )

    def setup(self) -> None:
        classifier = self.classifier
        (self.template,) = prompts.check_templates([self.template])
        encode_text, like = classifier.encode_text, classifier.class_embeddings
        if encode_text is None:
            raise MissingPartError(
                "method 'clipartt' writes prompts and needs a text encoder: give the ZeroShotClassifier "
                "encode_text=..."
            )
        checks.integer("topk", self.topk, 1, classifier.num_classes, at_most="num_classes")
        self.texts = prompts.embed_classes(encode_text, classifier.classes, [self.template])[:, 0].to(like)
        self._prompts = TextCache(encode_text, self.template, self.cached_prompts, like)

    def walk(self, steps: Walk) -> Generator[Pass, Seen, None]:
        """New prompts for the weights so far, then a step."""
        for _ in range(self.iterations):
            yield from steps.step(self._prompt_of_each)

    def _prompt_of_each(self, embeddings: Tensor) -> Tensor:
        """A prompt that names an image's likeliest classes, the likeliest first.

        ``tolist`` is the only time in an iteration that the host waits.
        """
        names = self.classifier.classes
        likeliest = (embeddings @ self.texts.T).topk(self.topk, dim=1).indices.tolist()
        return self._prompts([" or ".join(names[c] for c in row) for row in likeliest])

    def passes(self) -> tuple[int, int]:
        """One of each an iteration, and one forward pass to predict."""
        return self.iterations + 1, self.iterations
