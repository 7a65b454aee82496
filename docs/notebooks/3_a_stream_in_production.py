# %% [markdown]
# # A stream in production
#
# `ramen.Predictor` takes files, bytes or arrays as they come, answers each of them whatever happens, and
# keeps what was learned on disk. Here it classifies a folder of drawings, is stopped half way, and resumes.

# %%
from pathlib import Path

from PIL import Image

import ramen
from ramen.models.tiny_clip.model import load_tiny

data = ramen.data.load("tiny", pictures=12)
stream = ramen.data.make_stream("mixed", data, seed=0)
folder = Path("incoming")
folder.mkdir()
for number, image in enumerate(stream.read(slice(0, len(stream)))):
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:04}.png")
(folder / "0005.png").write_bytes(b"not an image")
files = sorted(folder.glob("*.png"))
print(len(files), "files, one of them damaged")

# %% [markdown]
# ## Half of the stream
#
# Every source gets one result, in order. The damaged file has a reason in place of an answer.

# %%
clf = load_tiny(data.classes)
with ramen.Predictor(ramen.create("ramen", clf), store="state/camera-1") as predictor:
    first = list(predictor.classify(files[:100]))
    print(predictor.counts)
for result in first[3:7]:
    if result.error:
        print(result.error)
    else:
        print(Path(result.key).name, result.label, f"{result.probability:.2f}", result.zero_shot_label)

# %% [markdown]
# ## The other half, after a restart
#
# A new process with a fresh method opens the same store and continues with what was learned.
# `state_version` is the number of images that the stream has seen.

# %%
with ramen.Predictor(ramen.create("ramen", clf), store="state/camera-1") as predictor:
    second = list(predictor.classify(files[100:]))
print("the last result of the first run:", first[-1].state_version)
print("the first result after the restart:", second[0].state_version)

# %% [markdown]
# It is the same, bit for bit on a CPU, as if nobody had stopped it:

# %%
with ramen.Predictor(ramen.create("ramen", clf)) as predictor:
    without_stopping = list(predictor.classify(files[:100])) + list(predictor.classify(files[100:]))
same = all(
    (a.label, a.probability) == (b.label, b.probability)
    for a, b in zip([*first, *second], without_stopping, strict=True)
)
assert same
print("the same answers:", same)

# %% [markdown]
# ## What it changed
#
# An operator sees what adaptation did, for every answer.

# %%
answered = [result for result in [*first, *second] if result.error is None]
changed = [result for result in answered if result.changed]
print(f"{len(changed)} of {len(answered)} labels differ from what the model alone says")
for result in changed[:5]:
    print(f"{Path(result.key).name}: {result.zero_shot_label} became {result.label}")

# %% [markdown]
# `ramen classify` is this in one command, [`ramen serve`](../service.md) behind HTTP.
