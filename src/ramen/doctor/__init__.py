"""``ramen doctor``: what is installed, what is missing, what is slow."""

from collections.abc import Iterator

from ramen.doctor import machine, packages, trial, weights
from ramen.doctor.findings import Check, Finding, findings_of

__all__ = ["CHECKS", "Finding", "examine"]

CHECKS: tuple[Check, ...] = (
    packages.python_version,
    packages.required_packages,
    packages.torch_and_torchvision,
    packages.optional_packages,
    machine.devices,
    machine.threads,
    machine.memory,
    machine.disk,
    weights.tiny_weights,
    weights.pretrained_weights,
    trial.self_test,
)


def examine(model: str | None = None) -> Iterator[Finding]:
    """Yield the findings of all checks as they are made; a check that fails does not stop the others.

    Args:
        model: Also check this model; a name that ``ramen.models.by_name.load_model`` accepts.
    """
    for check in CHECKS:
        yield from findings_of(check)
    if model is not None:

        def check_model() -> Iterator[Finding]:
            yield from trial.model_check(model)

        yield from findings_of(check_model)
