"""Where memory goes: what Ramen stores per image, and the full memory by codec, as the program plans it."""

from pathlib import Path

from ramen.experiments.style import COLOURS, QUIET, SOFT, look, save
from ramen.memory import codecs
from ramen.memory.plan import MemoryPlan
from tools.documentation.figures.canvas import new_canvas

# CIFAR-100-C with ViT-B/16, as in the paper: 100 queues of 750 entries, embeddings of 512 numbers, and 52
# norm parameters of 768 (two per norm layer, of which there are 26).
QUEUES, CAPACITY, EMBEDDING, NORM, PARAMETERS = 100, 750, 512, 768, 52
MIB = 2**20


def plan(codec: str) -> MemoryPlan:
    """The memory of the paper's setting with a codec."""
    return MemoryPlan(QUEUES, CAPACITY, EMBEDDING, NORM * PARAMETERS, codec=codec, blocks=[NORM] * PARAMETERS)


def shares(codec: str) -> dict[str, float]:
    """MiB of the full memory by what they hold."""
    whole = plan(codec)
    columns = {name: whole.slots * column.row_bytes for name, column in whole.columns().items()}
    gradients = columns["gradients"] + columns["scales"]
    embeddings = columns["embeddings"]
    rest = sum(whole.max_bytes().values()) - gradients - embeddings
    return {"gradients": gradients / MIB, "embeddings": embeddings / MIB, "everything else": rest / MIB}


def draw(path: Path) -> None:
    """Draw it."""
    names = list(codecs.CODECS)
    with look():
        figure = new_canvas(9.6, 2.9)
        axes = figure.add_subplot()
        for place, name in enumerate(names):
            left = 0.0
            parts = shares(name)
            for colour, width in zip((COLOURS[0], COLOURS[1], QUIET), parts.values(), strict=True):
                axes.barh(place, width, left=left, color=colour, height=0.62)
                left += width
            axes.text(left + 120, place, f"{left:,.0f} MiB", va="center", color=SOFT)
        axes.set_yticks(range(len(names)), [f'codec="{name}"' for name in names])
        axes.invert_yaxis()
        axes.set_xlim(0, sum(shares(names[0]).values()) * 1.12)
        axes.set_xlabel("MiB of a full memory: 75,000 images, ViT-B/16, 100 classes")
        handles = [
            axes.barh(0, 0, color=colour, label=label)
            for colour, label in zip((COLOURS[0], COLOURS[1], QUIET), shares(names[0]), strict=True)
        ]
        axes.legend(handles=handles, loc="lower right")
        axes.set_title("Nearly all of the memory is gradients, and one bit of each value will do")
        save(path, figure)
