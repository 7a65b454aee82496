"""Options of the commands that run experiments, and the plan that they ask for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ramen.experiments.experiment import Experiment

Model = Annotated[str | None, typer.Option(help="Such as ViT-B-32/openai, or tiny; the preset's without it.")]
Data = Annotated[str, typer.Option(help="A data set; `ramen data list` shows them.")]
Root = Annotated[Path | None, typer.Option(help="The folder or file that holds the data set.")]
Protocol = Annotated[str, typer.Option(help="The order of the stream.")]
Seeds = Annotated[str, typer.Option(help="One run for each: 0,1,2 or 0-4.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A hyper-parameter, topk=10 or ramen.topk=10; may be given again."),
]
Preset = Annotated[str | None, typer.Option(help="Hyper-parameters: a preset, a .toml file, or none.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many pictures of the stream.")]
PerDomain = Annotated[int | None, typer.Option(min=1, help="At most so many pictures of each domain.")]
Severity = Annotated[int | None, typer.Option(min=1, max=5, help="Of CIFAR-C and ImageNet-C.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Pictures in a batch; the preset's without it.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="Type of the encoder's weights: float32, float16, bfloat16.")]
Store = Annotated[Path, typer.Option(help="Where results lie; those that are there are not run again.")]
Json = Annotated[
    bool, typer.Option("--json", help="Results on standard output, everything else on standard error.")
]


def parse_seeds(text: str) -> list[int]:
    """Seeds from ``"0,1,2"`` and ``"0-4"``.

    >>> parse_seeds("0,5-7")
    [0, 5, 6, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--seeds must be numbers such as 0,1,2 or 0-4, got {text!r}")
        seeds += range(int(first), int(last if dash else first) + 1)
    if not seeds:
        raise ValueError(f"--seeds must name one seed at least, got {text!r}")
    return list(dict.fromkeys(seeds))


def planned(
    methods: Sequence[str],
    *,
    seeds: str,
    limit: int | None,
    per_domain: int | None,
    severity: int | None,
    settings: Sequence[str] | None,
    **rest: Any,
) -> list["Experiment"]:
    """The experiments that the options above ask for."""
    from ramen.experiments.experiment import plan

    stream = {"limit": limit, "per_domain": per_domain}
    return plan(
        methods,
        seeds=parse_seeds(seeds),
        settings=settings or (),
        data_options={} if severity is None else {"severity": severity},
        protocol_parameters={name: value for name, value in stream.items() if value is not None},
        **rest,
    )
