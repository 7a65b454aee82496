# %% [markdown]
# # Write a method
#
# A method is a class with one function, `adapt`: images in, logits out. Everything else (checking input,
# answering images that cannot be used, counting, saving, restoring) is done around it. This one moves the
# class embeddings towards the confident images of each class.

# %%
import torch
import torch.nn.functional as F
from torch import Tensor

import ramen
from ramen.methods import Answer, Method, MethodInfo, entropy, field, register
from ramen.models.tiny_clip.model import load_tiny


@register(
    MethodInfo(
        name="moving_classes",
        title="Moving classes",
        venue="",
        paper="this notebook",
        updates="one vector per class, online",
        predicts_with="the one pass, with the vectors after the update",
        batch_dependent=True,
        forwards=1,
        backwards=0,
    )
)
class MovingClasses(Method):
    """Move each class embedding towards the mean of the confident images that are predicted as it."""

    pace: float = field(0.1, ge=0, doc="How far a batch moves the vectors.")
    bound: float = field(0.2, ge=0, doc="Images count if their entropy is below this share of the highest.")
    recordable = True
    vectors: Tensor

    def setup(self) -> None:
        self.add_state("vectors", self.classifier.class_embeddings)

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Learn from the confident images, then answer with what was learned."""
        embeddings = self.classifier.encode(images)
        usable = usable & embeddings.isfinite().all(1)
        zero_shot = self.classifier.logits(embeddings)
        embeddings = torch.where(usable[:, None], embeddings, 0)
        highest = torch.log(torch.tensor(float(zero_shot.shape[1])))
        counts = usable & (entropy(zero_shot) < self.bound * highest)
        votes = F.one_hot(zero_shot.argmax(1), zero_shot.shape[1]).to(embeddings) * counts[:, None]
        sums = votes.T @ embeddings
        moved = self.vectors + self.pace * torch.where(sums.any(1, keepdim=True), F.normalize(sums, dim=1), 0)
        self.vectors = F.normalize(moved, dim=1)
        logits = self.classifier.logit_scale * embeddings @ self.vectors.T
        return Answer(logits, zero_shot, usable)


# %% [markdown]
# ## Does it keep the contract?
#
# Inputs stay unchanged, a batch of one works, `reset` equals fresh, a saved state continues bit for bit,
# damaged states are refused, non-finite images leave no trace, the record's counts of passes are true.

# %%
ramen.testing.check_method("moving_classes")
print("it does")

# %% [markdown]
# ## Is it any good?
#
# The same stream for everybody, zero-shot included.

# %%
data = ramen.data.load("tiny", pictures=25)
stream = ramen.data.make_stream("mixed", data, seed=0)
clf = load_tiny(data.classes)
labels = torch.from_numpy(stream.labels())
batches = stream.batches(50)
inputs = [clf.preprocess(stream.read(batch)) for batch in batches]
for name in ("ensemble", "moving_classes", "tent", "ramen"):
    method = ramen.create(name, clf)
    right = sum(
        int((method.predict(images).labels == labels[batch]).sum())
        for batch, images in zip(batches, inputs, strict=True)
    )
    print(f"{name:15} {100 * right / len(stream):.1f} %")

# %% [markdown]
# To make it part of the package, put the class into a file of its own in `src/ramen/methods`:
# [contributing](../../CONTRIBUTING.md) says what else its author should know.
