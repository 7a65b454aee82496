"""Methods whose runs a test can meet at work, or that end their process; for ``--import``."""

import os
import subprocess
import time
from typing import Any

from ramen.methods import MethodInfo, field, register
from ramen.methods.tent import Tent

FACTS: dict[str, Any] = {
    "venue": "",
    "paper": "https://example.org",
    "updates": "all norm layers",
    "predicts_with": "the forward pass before the update",
    "batch_dependent": True,
    "forwards": 1,
    "backwards": 1,
}


@register(MethodInfo(name="slow", title="Slow", **FACTS))
class Slow(Tent):
    """Tent, with a pause before each batch but the first."""

    pause: float = field(0.3, ge=0, doc="Seconds.")

    def adapt(self, images: Any, usable: Any) -> Any:
        """Rest, then answer."""
        if vars(self).get("begun"):
            time.sleep(self.pause)
        self.begun = True
        return super().adapt(images, usable)


@register(MethodInfo(name="odd", title="Odd", **FACTS))
class Odd(Tent):
    """Tent, which prints much and then fails, or takes its process along."""

    end: str = field("fail", choices=("fail", "die"), doc="How.")

    def adapt(self, images: Any, usable: Any) -> Any:
        """Do not answer."""
        print("a line of a library", flush=True)
        subprocess.run(["echo", "a line of a child"], check=True)
        if self.end == "die":
            os._exit(5)
        raise RuntimeError("it cannot be done")
