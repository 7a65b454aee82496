"""One page per registered method, from its record, its source and the committed measurements."""

import inspect
import re
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import ramen
from ramen.methods._registry import get_method
from tools.documentation.measurements import Accuracy, Measured, measured
from tools.documentation.repository_links import outside_code

# What is between these marks is for code hosts, which show a page as it was written.
_PLACE = re.compile(r"<!-- made: all methods with what was measured -->.*?<!-- end -->", re.DOTALL)
STEPS = ("adapt", "step", "from_views")  # what authors of methods implement


def paths() -> dict[str, str]:
    """The pages by method."""
    return {name: f"methods/{name}.md" for name in own_methods()}


def pages() -> dict[str, str]:
    """The pages by their places on the site."""
    return {path: page(name) for name, path in paths().items()}


def own_methods() -> list[str]:
    """The methods of the package, without those that a program has registered."""
    return [name for name in ramen.list_methods() if get_method(name).__module__.startswith("ramen.methods.")]


def page(name: str) -> str:
    """The page of a method."""
    cls, info = get_method(name), ramen.describe(name)
    paper = f"[{info.paper}]({info.paper})" if info.paper.startswith("http") else info.paper
    sized = f", with {' and '.join(info.batch_sized)} equal to the batch size" if info.batch_sized else ""
    facts = {
        "paper": ", ".join(part for part in (paper, info.venue) if part),
        "updates": info.updates,
        "predicts with": info.predicts_with,
        "an image's answer depends on its batch": "yes" if info.batch_dependent else "no, by default",
        "passes per image": f"{info.forwards} forward, {info.backwards} backward{sized}",
        "the seed matters": "yes, for some parameters" if info.random else "no",
        "many processes can share a stream": "yes" if cls.joins_groups else "no",
        "says which stored images are behind an answer": "yes" if cls.retrieves else "no",
    }
    parts = [
        f"# {name}: {_title(name, info.title)}",
        _description(cls),
        "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items() if value)]),
        f'```python\nmethod = ramen.create("{name}", clf)\nout = method.predict(images)\n```',
        *_notes(info.notes),
        *_parameters(info.defaults, info.explanations),
        *_algorithm(cls),
        *_measurements(measured().get(name)),
    ]
    return "\n\n".join(parts) + "\n"


def fill_in(path: str, markdown: str) -> str:
    """A page written by hand, with its places for what is made here filled in."""
    if path == "methods.md":  # the table's names lead to the pages
        known = paths()
        return re.sub(
            r"^\| `(\w+)`",
            lambda row: f"| [`{row[1]}`]({known[row[1]]})" if row[1] in known else row[0],
            markdown,
            flags=re.MULTILINE,
        )
    return _PLACE.sub(lambda _: overview(), markdown)


def overview() -> str:
    """A table of all methods with the first measurement of each kind."""
    columns: list[tuple[str, str]] = sorted(
        {(one.what, one.protocol) for each in measured().values() for one in each.accuracies}
    )
    heads = [f"{_short(what)}, {protocol}" for what, protocol in columns]
    lines = [
        "| " + " | ".join(["method", "passes", "in forward passes", *heads]) + " |",
        "|---|---|---:|" + "---:|" * len(heads),
    ]
    for name, path in paths().items():
        info, found = ramen.describe(name), measured().get(name, Measured())
        cost = f"{found.costs[0].forwards:.1f}" if found.costs else ""
        unbroken = {(one.what, one.protocol): one.text.replace(" ", "\u00a0") for one in found.accuracies}
        row = [
            f"[`{name}`]({path})",
            f"{info.forwards} + {info.backwards}",
            cost,
            *(unbroken.get(column, "") for column in columns),
        ]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _title(name: str, title: str) -> str:
    head, colon, rest = title.partition(": ")
    return rest if colon and head.lower() == name else title


def _description(cls: Any) -> str:
    summary = inspect.getdoc(cls) or ""
    text = re.split(r"^(?:Args|Attributes|Raises|Returns):$", summary, maxsplit=1, flags=re.MULTILINE)[0]
    return _markdown(text.strip())


def _markdown(docstring: str) -> str:
    """Docstrings have code between two backticks, and no other marks."""
    return outside_code(re.sub(r"``(.+?)``", r"`\1`", docstring), lambda text: text.replace("*", "\\*"))


def _notes(notes: tuple[str, ...]) -> list[str]:
    if not notes:
        return []
    listed = "\n".join(f"- {_markdown(note)}" for note in notes)
    return ["## What was decided", "The paper leaves this open, or its code differs from it:", listed]


def _parameters(defaults: Any, explanations: Any) -> list[str]:
    if not defaults:
        return []
    rows = [
        f"| `{name}` | {_default(value)} | {_cell(_markdown(explanations.get(name) or ''))} |"
        for name, value in defaults.items()
    ]
    return ["## Parameters", "\n".join(["| name | default | meaning |", "|---|---|---|", *rows])]


def _default(value: Any) -> str:
    return "required" if value is inspect.Parameter.empty else f"`{_cell(repr(value))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _algorithm(cls: Any) -> list[str]:
    """The functions that make the method, with those of its bases only if it has none of its own."""
    own = [getattr(cls, name) for name in STEPS if name in vars(cls)]
    shown = own or [getattr(cls, name) for name in STEPS[:1]]
    code = "\n\n".join(dedent(inspect.getsource(function)).rstrip() for function in shown)
    source = Path(inspect.getsourcefile(cls) or "")
    text = indent(f"~~~~python\n{source.read_text(encoding='utf-8').rstrip()}\n~~~~", "    ")
    return [
        "## The algorithm",
        "This is the code that runs: one call per batch of images.",
        f"~~~~python\n{code}\n~~~~",
        f'??? note "The whole file, {source.name}"\n\n{text}',
    ]


def _measurements(found: Measured | None) -> list[str]:
    if found is None:
        return ["## Measured", "Neither cost nor accuracy has been measured for the committed results yet."]
    parts = ["## Measured"]
    if found.costs:
        rows = [f"| {one.setting} | {one.forwards:.1f} | {_file(one.file)} |" for one in found.costs]
        head = ["| setting | time of a step, in forward passes | file |", "|---|---:|---|"]
        parts += ["\n".join([*head, *rows])]
    if found.accuracies:
        rows = [_accuracy_row(one) for one in found.accuracies]
        head = [
            "| stream | protocol | accuracy | above zero-shot | seeds | file |",
            "|---|---|---:|---:|---:|---|",
        ]
        parts += ["\n".join([*head, *rows])]
    return parts


def _accuracy_row(one: Accuracy) -> str:
    cells = [one.what, one.protocol, one.text, one.gain_text, str(len(one.values)), _file(one.file)]
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _file(name: str) -> str:
    return f"[{name}](../../benchmarks/results/{name})"


def _short(what: str) -> str:
    """The model that a result is about, from the words of its file."""
    for words in ("tiny CLIP", "small CLIP"):
        if words in what:
            return words
    return what
