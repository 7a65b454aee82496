"""Short runs on the embedded model, for tests of the runner."""

from pathlib import Path

from ramen.experiments.experiment import Experiment, plan

DATA = {"pictures": 8, "domains": ["fog", "impulse_noise", "neon", "chalk"]}
IMAGES = 32
ODD_METHODS = str(Path(__file__).parents[1] / "fakes" / "odd_methods.py")


def planned(*methods: str, **changes: object) -> list[Experiment]:
    return plan(methods, **{"data_options": DATA, "batch": 7, **changes})


# what Ramen chooses depends on the memory that is free
FIXED = {"settings": ["ramen.capacity=20", "ramen.codec=fp32"]}


def odd(*methods: str, **changes: object) -> list[Experiment]:
    """Of methods that only tests have, as a user's file brings them."""
    return planned(*methods, imports=(ODD_METHODS,), **changes)


def files_of(*experiments: Experiment, out: Path) -> list[Path]:
    """What their finished runs leave: a result each, with the answers beside it."""
    paths = [one.path(out) for one in experiments]
    return sorted([*paths, *(path.with_suffix(".npz") for path in paths)])
