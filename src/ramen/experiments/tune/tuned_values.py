"""The values that a search has chosen, and the streams on which they may be used."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen.experiments.plan.values import from_plain
from ramen.experiments.run.results import DamagedResultError, read_result
from ramen.utils.checks import nearest

STUDY = "tune"  # the kind of study that a search is, in its result
_FACTS = ("search", "model", "data", "domains", "seeds", "protocol", "batch", "budget")


@dataclass(frozen=True)
class TunedValues:
    """What a search has chosen.

    Attributes:
        facts: What a result records about the search: its key, and what it was made on.
        chosen: The parameters of each method in plain values.
    """

    facts: Mapping[str, Any]
    chosen: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path | str) -> "TunedValues":
        """The values in the result of ``ramen tune``."""
        result = read_result(path)
        if result.get("kind") != "study" or result.get("study") != STUDY:
            raise ValueError(f"{path} is not a result of `ramen tune`, but of {_kind(result)}")
        try:
            data = result["data"]
            facts = {name: data[name] for name in _FACTS}
            chosen = {method: dict(one["chosen"]) for method, one in data["methods"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DamagedResultError(f"{path} is damaged: it has no {error}; run the search again") from None
        return cls(facts, chosen)

    def row(self, method: str) -> dict[str, Any]:
        """The chosen parameters of a method; none if there was nothing to choose."""
        if method not in self.chosen:
            raise ValueError(
                f"--tuned: the search did not include method {method!r}{nearest(method, self.chosen)}"
            )
        return dict(from_plain(self.chosen[method]))

    def record(self, method: str, model: str) -> dict[str, Any]:
        """What the result of a run records about where its parameters came from."""
        if model != self.facts["model"]:
            raise ValueError(
                f"--tuned: the values were chosen for model {self.facts['model']!r}, got {model!r}"
            )
        return {**self.facts, "parameters": dict(self.chosen[method])}


def refuse_tuning_stream(
    tuned: Mapping[str, Any], data: str, seed: int, domains: Iterable[str] | None = None
) -> None:
    """Raise ValueError if parameters were chosen on a stream like this one.

    Args:
        tuned: As ``TunedValues.record`` returns it.
        data: The data set of the stream.
        seed: Its seed.
        domains: Its domains, if they are known yet.
    """
    if data != tuned["data"]:
        return
    shared = [domain for domain in domains or () if domain in tuned["domains"]]
    if shared:
        raise ValueError(
            f"--tuned: the values were chosen on {', '.join(shared)} of {data}: they must not be tested "
            "there; choose other domains"
        )
    if seed in tuned["seeds"]:
        raise ValueError(
            f"--tuned: the values were chosen on seed {seed} of {data}: they must not be tested there; "
            "choose another seed"
        )


def _kind(result: Mapping[str, Any]) -> str:
    return f"a {result.get('kind')}" + (f", {result['study']!r}" if "study" in result else "")
