# %% [markdown]
# # Bring your own encoder
#
# Ramen adapts any PyTorch module that maps images to vectors and has norm layers. It need not be a CLIP:
# here it is a small network that we train ourselves for a few seconds, with one learned vector per
# class in place of a text.

# %%
import torch
import torch.nn.functional as F
from torch import nn

import ramen

torch.manual_seed(0)
CLASSES = ["house", "boat", "cat", "cactus", "cup", "butterfly"]


class SmallNet(nn.Module):
    """Four convolutions with group norm, 32 x 32 images to vectors of 64 numbers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 32, 2), (32, 64, 1), (64, 64, 2), (64, 64, 2)):
            layers += [nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(8, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(64, 64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Embeddings of a batch of images."""
        return self.head(self.layers(images).mean((2, 3)))


# %% [markdown]
# ## Train it on clean drawings


# %%
def tensors(domain: str, seed: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawings of one domain as the network's input, with their classes."""
    data = ramen.data.load("tiny", domains=[domain], pictures=number, picture_seed=seed)
    wanted = {data.classes.index(name): place for place, name in enumerate(CLASSES)}
    drawings = data.domains[0]
    kept = [place for place, label in enumerate(drawings.labels) if label in wanted]
    pixels = drawings.images.read(kept).float() / 127.5 - 1
    return pixels, torch.tensor([wanted[label] for label in drawings.labels[kept]])


images, labels = tensors("clean", seed=1, number=1200)
network = SmallNet()
scale = 10.0
prototypes = nn.Parameter(torch.randn(len(CLASSES), 64))
optimizer = torch.optim.AdamW([*network.parameters(), prototypes], lr=3e-3)
for _epoch in range(8):
    for rows in torch.randperm(len(images)).split(64):
        cosines = F.normalize(network(images[rows]), dim=1) @ F.normalize(prototypes, dim=1).T
        loss = F.cross_entropy(scale * cosines, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
network.eval()
print(f"{len(images)} drawings, last loss {loss.item():.3f}")

# %% [markdown]
# ## Wrap it
#
# A classifier is an encoder, one vector per class, and a scale. The encoder's norm parameters become one
# flat vector that methods may change for a batch or for each image; the module itself is never written to.

# %%
clf = ramen.ZeroShotClassifier(
    encoder=network, class_embeddings=prototypes.detach(), logit_scale=scale, classes=CLASSES
)
print(clf.encoder.base.shape, "norm parameters in", len(clf.encoder.layout), "slices")

# %% [markdown]
# ## Adapt it to images that it has not seen

# %%
DOMAINS = ["fog", "contrast", "gaussian_noise", "chalk"]
parts = [tensors(domain, seed=2, number=240) for domain in DOMAINS]
pixels, truth = (torch.cat(both) for both in zip(*parts, strict=True))
order = torch.randperm(len(pixels))
method = ramen.create("ramen", clf)
right = before = 0
for rows in order.split(50):
    out = method.predict(pixels[rows])
    right += int((out.labels == truth[rows]).sum())
    before += int((out.zero_shot_logits.argmax(1) == truth[rows]).sum())
print(f"{len(pixels)} images: {before} right before, {right} right with adaptation")

# %% [markdown]
# ## In an existing loop
#
# `ramen.adapt` is the same as an `nn.Module`: it takes a batch and returns logits, so that it can stand
# where the network stood.

# %%
adapted = ramen.adapt(
    network, class_embeddings=prototypes.detach(), logit_scale=scale, method="tent", lr=1e-3
)
logits = adapted(pixels[:8])
print(type(adapted).__name__, tuple(logits.shape), logits.requires_grad)
adapted.reset()
