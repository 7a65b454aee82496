"""``python -m tools.documentation.figures [FOLDER]`` draws all figures."""

import sys
from pathlib import Path

from tools.documentation.figures import five_steps, memory_sizes, stream_orders

FIGURES = {
    "five_steps.svg": five_steps.draw,
    "memory_sizes.svg": memory_sizes.draw,
    "stream_orders.svg": stream_orders.draw,
}


def main(folder: Path) -> None:
    """Draw every figure into a folder."""
    for name, draw in FIGURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
