"""Files that some tests use and that are no part of the project; without them those tests are skipped.

They are in the folder that an environment variable names, or else in ``shared`` beside the checkout.
"""

import os
from dataclasses import dataclass
from pathlib import Path

BESIDE = Path(__file__).resolve().parents[3] / "shared"


@dataclass(frozen=True)
class SharedFolder:
    """A folder of such files.

    Attributes:
        content: What is in it.
        name: Its name in ``shared`` beside the checkout.
        variable: The environment variable that names another folder.
    """

    content: str
    name: str
    variable: str

    @property
    def path(self) -> Path:
        """Where it is, if it is anywhere."""
        named = os.environ.get(self.variable)
        return Path(named) if named else BESIDE / self.name

    @property
    def missing(self) -> str:
        """Why a test that needs it is skipped; empty if it is there."""
        if self.path.is_dir():
            return ""
        return f"need {self.content}; {self.variable}=FOLDER names its folder (not found: {self.path})"

    def check(self) -> None:
        """Raise a ValueError if the variable names a folder that is not there."""
        if os.environ.get(self.variable) and not self.path.is_dir():
            raise ValueError(f"{self.variable} must name a folder, got {str(self.path)!r}")


MEASURING_MODEL = SharedFolder("the measuring model and stream", "testbed", "RAMEN_TESTBED")
REAL_NETWORK = SharedFolder("the real network and photographs", "testbed_real", "RAMEN_TESTBED_REAL")
REAL_CLIP = SharedFolder("the real CLIP and photographs", "testbed_clip", "RAMEN_TESTBED_CLIP")
PAPER_FACTS = SharedFolder("the file of the paper's numbers", "facts", "RAMEN_FACTS")
