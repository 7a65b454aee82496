# %% [markdown]
# # Start
#
# A tiny CLIP that is part of the package classifies drawings under corruptions and in styles that it has
# never seen, first as it is and then with Ramen, which adapts it to every image without labels. Nothing is
# downloaded.

# %%
import matplotlib.pyplot as plt
import torch

import ramen
from ramen.models.tiny_clip.model import load_tiny

data = ramen.data.load("tiny", pictures=30)
clf = load_tiny(data.classes)
print(f"{len(data.classes)} classes, {len(data.domains)} domains, {len(data)} drawings")

# %% [markdown]
# For your photographs the classifier would be `ramen.ZeroShotClassifier.from_open_clip("ViT-B-16",
# "openai", classes=[...])`; the rest stays as it is.
#
# ## A stream of mixed domains
#
# All domains come in one random order, as from many cameras at once.

# %%
stream = ramen.data.make_stream("mixed", data, seed=0)
labels = torch.from_numpy(stream.labels())
first = stream.batches(12)[0]
figure, axes = plt.subplots(2, 6, figsize=(8, 3.2))
for axis, image, label, domain in zip(
    axes.flat, stream.read(first), labels[first], stream.domain[first], strict=True
):
    axis.imshow(image.permute(1, 2, 0))
    axis.set_title(f"{data.classes[label]}\n{data.domains[domain].name}", fontsize=7)
    axis.axis("off")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Predict
#
# One method object is one stream. `predict` answers a batch and learns from it; what the classifier says
# without adaptation comes along.

# %%
method = ramen.create("ramen", clf)
adapted, zero_shot = torch.empty_like(labels), torch.empty_like(labels)
for batch in stream.batches(60):
    out = method.predict(clf.preprocess(stream.read(batch)))
    adapted[batch] = out.labels
    zero_shot[batch] = out.zero_shot_logits.argmax(1)
print(f"zero-shot {100 * (zero_shot == labels).float().mean():.1f} %")
print(f"Ramen     {100 * (adapted == labels).float().mean():.1f} %")

# %% [markdown]
# ## What was chosen, and why
#
# Nothing had to be tuned. The method says what it chose:

# %%
print(method.parameters)

# %% [markdown]
# ## What it changed
#
# Adaptation repairs more answers than it breaks, and does break some: look at both before you trust it.

# %%
repaired = int(((adapted == labels) & (zero_shot != labels)).sum())
broken = int(((adapted != labels) & (zero_shot == labels)).sum())
print(f"of {len(labels)} answers {repaired} were repaired and {broken} broken")
