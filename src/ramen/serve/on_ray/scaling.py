"""How many replicas there are, and what each of them gets."""

from dataclasses import dataclass

from ramen.utils import checks


@dataclass(frozen=True)
class Scaling:
    """What an operator decides about replicas.

    Attributes:
        replicas: How many there are; None if Ray decides, within the next two.
        min_replicas: The fewest.
        max_replicas: The most.
        gpus_per_replica: GPUs of each; a fraction lets several share one.
        cpus_per_replica: CPU cores of each.
        ingress_replicas: Processes that take HTTP requests. ``/metrics`` and ``/v1/statistics`` come from any
            one of them, and each counts from its own start.
    """

    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    gpus_per_replica: float = 0.0
    cpus_per_replica: float = 1.0
    ingress_replicas: int = 1

    def __post_init__(self) -> None:
        if self.replicas is not None:
            checks.integer("replicas", self.replicas, 1)
            if self.min_replicas is not None or self.max_replicas is not None:
                raise ValueError(
                    "either replicas, or min_replicas and max_replicas, and not both, got "
                    f"replicas={self.replicas}, min_replicas={self.min_replicas}, "
                    f"max_replicas={self.max_replicas}"
                )
        if (self.min_replicas is None) != (self.max_replicas is None):
            raise ValueError(
                f"min_replicas and max_replicas go together, got {self.min_replicas} and {self.max_replicas}"
            )
        if self.min_replicas is not None and self.max_replicas is not None:
            checks.integer("min_replicas", self.min_replicas, 1, self.max_replicas, "max_replicas")
            checks.integer("max_replicas", self.max_replicas, 1)
        checks.number("gpus_per_replica", self.gpus_per_replica, 0)
        checks.number("cpus_per_replica", self.cpus_per_replica, 0)
        checks.integer("ingress_replicas", self.ingress_replicas, 1)

    @property
    def most(self) -> int:
        """The most replicas that there can be."""
        return self.max_replicas or self.replicas or 1
