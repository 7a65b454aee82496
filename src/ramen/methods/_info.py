"""The record of facts that a method registers with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any

_WIDTH, _DEEP = 100, " " * 8  # of the text about a parameter


@dataclass(frozen=True)
class MethodInfo:
    """The record of facts that a method registers with."""

    name: str
    title: str
    venue: str
    paper: str
    updates: str  # what changes in the model
    predicts_with: str  # which of its forward passes, with which parameters
    batch_dependent: bool  # whether, by default, an image's answer depends on the others of its batch
    forwards: int  # encoder passes per image, with the default parameters
    backwards: int
    notes: tuple[str, ...] = ()  # decisions that the papers leave open
    batch_sized: tuple[str, ...] = ()  # parameters that the counts of passes assume to be the batch size
    random: bool = False  # whether the seed changes answers, for some parameters
    # filled in from the class on registration: its parameters, what its docstring says about each, and
    # whether the processes of a group can share its stream
    defaults: Mapping[str, Any] = field(default_factory=dict)
    explanations: Mapping[str, str] = field(default_factory=dict)
    joins_groups: bool = False

    def __str__(self) -> str:
        sized = f", with {' and '.join(self.batch_sized)} equal to the batch size" if self.batch_sized else ""
        rows = {
            "paper": f"{self.paper} ({self.venue})" if self.venue else self.paper,
            "updates": self.updates,
            "predicts with": self.predicts_with,
            "depends on batch mates": "yes" if self.batch_dependent else "no",
            "passes per image": f"{self.forwards} forward, {self.backwards} backward{sized}",
            "in a group of processes": "shares one stream" if self.joins_groups else "refuses",
        }
        lines = [f"{self.name}: {self.title}", *(f"  {key}: {value}" for key, value in rows.items())]
        lines += [f"  note: {note}" for note in self.notes]
        lines.append("  parameters:" if self.defaults else "  parameters: none")
        for name, value in self.defaults.items():
            lines.append(f"    {name}={value!r}")
            if self.explanations.get(name):
                lines.append(
                    fill(self.explanations[name], _WIDTH, initial_indent=_DEEP, subsequent_indent=_DEEP)
                )
        return "\n".join(lines)
