"""Experiments: plan and run them, analyse and show their results.

from ramen.experiments import plan, run_all

results = run_all(plan(["ramen", "tent"], data="cifar10c", root="DATA", seeds=[0, 1, 2]), "results")
"""

from typing import TYPE_CHECKING

from ramen.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from ramen.experiments.experiment import plan as plan
    from ramen.experiments.workers import run_all as run_all

_HOMES = {"plan": "ramen.experiments.experiment", "run_all": "ramen.experiments.workers"}

__all__ = ["plan", "run_all"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
