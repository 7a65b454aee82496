"""Short runs on the embedded model, for tests of the runner."""

from ramen.experiments.plan.experiment import Experiment, plan

DATA = {"pictures": 8, "domains": ["fog", "impulse_noise", "neon", "chalk"]}
IMAGES = 32


def planned(*methods: str, **changes: object) -> list[Experiment]:
    return plan(methods, **{"data_options": DATA, "batch": 7, **changes})
