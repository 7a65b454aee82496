"""TPT: the words of the prompt are learned anew for each image, so that the surest of its views agree.

Shu et al., "Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models", NeurIPS 2022.
"""

import torch
from torch import Tensor

from ramen.methods._losses import RANDOM_VIEWS
from ramen.methods._optim import AdamState, adam_step
from ramen.methods._registry import MethodInfo, field, register
from ramen.methods._views import ViewMethod, entropy_of_mean, surest
from ramen.models import prompts
from ramen.models.classifier import MissingPartError
from ramen.models.text import PromptTextEncoder

_DECAY = 0.01  # AdamW's own


@register(
    MethodInfo(
        name="tpt",
        title="TPT: test-time prompt tuning",
        venue="NeurIPS 2022",
        paper="https://arxiv.org/abs/2209.07511",
        updates="the vectors of a prompt's words before the class name, for one image; then reset",
        predicts_with="the image itself, the first of the views, with the learned prompt",
        batch_dependent=False,
        forwards=64,
        backwards=0,
        random=True,
        notes=(
            "from TPT's code: 64 views, the 6 with the lowest entropies are chosen once, one step of AdamW "
            "with lr 5e-3 on the entropy of their mean probability, 4 words that start as 'a photo of a', a "
            "full stop after the name; words and AdamW start afresh for each image",
            "the passes are the image encoder's. The prompts of all classes go through the text tower twice "
            "forward and once back for each image, which takes most of the time if there are many classes",
            "TPT's code adds AugMix to the views of its ten fine-grained data sets (augmix=1); those of "
            "ImageNet and its variants are crops alone, as by default here",
            "the text tower computes in fp32: no scaling of the loss as in TPT's mixed precision",
            RANDOM_VIEWS,
        ),
    )
)
class Tpt(ViewMethod):
    """Learn a prompt that makes the surest views agree, and answer the image with it."""

    lr: float = field(5e-3, ge=0, doc="AdamW's step size.")
    steps: int = field(1, ge=1, doc="How many steps.")
    kept: float = field(
        0.1,
        gt=0,
        le=1,
        doc="The share of the views that count, those with the lowest entropies; at least one view.",
    )
    template: str = field(
        prompts.SINGLE[0], doc="What the prompt starts as; its words before the class name are learned."
    )
    prompts_at_once: int = field(
        1000,
        ge=1,
        doc="How many prompts go through the text tower together, but never less than those of one image; "
        "decides the memory needed.",
    )

    def setup(self) -> None:
        super().setup()
        classifier = self.classifier
        encode_text = classifier.encode_text
        if not isinstance(encode_text, PromptTextEncoder):
            raise MissingPartError(
                "method 'tpt' learns the words of a prompt and needs a text encoder that takes vectors in "
                "their place: load the model with ZeroShotClassifier.from_open_clip, or give it an "
                "encode_text with a function context_prompts"
            )
        (self.template,) = prompts.check_templates([self.template])
        self._prompts = encode_text.context_prompts(self.template, classifier.classes)
        self._start = self._prompts.start.to(classifier.class_embeddings)
        with torch.no_grad():
            self._first_texts = self._texts(self._start[None])

    def from_views(self, embeddings: Tensor) -> Tensor:
        """A prompt for each image, for a few images at a time."""
        at_once = max(1, self.prompts_at_once // self.classifier.num_classes)
        return torch.cat([self._learned_logits(part) for part in embeddings.split(at_once)])

    def _learned_logits(self, embeddings: Tensor) -> Tensor:
        chosen = surest(embeddings, self._logits(embeddings, self._first_texts), self.kept)
        context = self._start.expand(len(embeddings), -1, -1)
        state = AdamState.zero(context)
        for _ in range(self.steps):
            with torch.enable_grad():
                context = context.detach().requires_grad_()
                logits = self._logits(chosen, self._texts(context))
                loss = entropy_of_mean(logits).sum()  # each image has a context of its own
                (gradient,) = torch.autograd.grad(loss, context)
            context, state = adam_step(context.detach(), gradient, state, self.lr, decay=_DECAY)
        return self._logits(embeddings[:, :1], self._texts(context)).squeeze(1)

    def _texts(self, context: Tensor) -> Tensor:
        """Class embeddings ``(B, C, d)`` for each image's context."""
        return self._prompts(context).to(self.classifier.class_embeddings)

    def _logits(self, embeddings: Tensor, texts: Tensor) -> Tensor:
        """Logits ``(B, views, C)`` with class embeddings of each image's own."""
        return self.classifier.logit_scale * embeddings @ texts.mT
