"""The page: changed images, the mix of classes and the entropy over time, failed files, settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ramen.classify.changes_page.figures import entropy_figure, mix_figure
from ramen.classify.changes_page.summary import SHOWN, ChangesSummary
from ramen.classify.changes_page.text import name, visible
from ramen.classify.output import Output, Run
from ramen.client.result import Result
from ramen.images.decoding import DecodingSettings
from ramen.images.thumbnails import Thumbnail, make_thumbnails
from ramen.utils import files
from ramen.utils.html import Markup, element, join, whole_page
from ramen.utils.pages import asset

ARROW = "\N{RIGHTWARDS ARROW}"
_TRANSITIONS = 10  # in the table
_LISTED = 12  # nobody reads a list of a thousand classes


@dataclass(frozen=True)
class PageSettings:
    """What a page says about how its results were made.

    Attributes:
        output: The file with all results.
        model: The model's name.
        method: The method's name, as people write it.
        classes: All class names.
        facts: Further settings by name, each with its value in words.
        parameters: Of the method, in words.
        chosen: Why, for each parameter that the method chose itself.
        decoding: How images are read, for the thumbnails.
    """

    output: Path
    model: str
    method: str
    classes: Sequence[str]
    facts: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)


def write_page(path: Path, output: Output, settings: PageSettings, *, shown: int = SHOWN) -> None:
    """Write the page of all results in an output, atomically.

    Args:
        path: The HTML file; missing parent folders are created.
        output: The results.
        settings: How they were made.
        shown: The most changed images, and the most failed files, that are shown.
    """
    summary = ChangesSummary.of(output.results(), output.tally.answers, shown)
    thumbnails = list(make_thumbnails([result.key for result in summary.changes], settings.decoding))
    files.write_text(path, make_page(summary, thumbnails, output.runs, settings))


def make_page(
    summary: ChangesSummary,
    thumbnails: Sequence[Thumbnail | None],
    runs: Sequence[Run],
    settings: PageSettings,
) -> str:
    """The page as text.

    Args:
        summary: What to show.
        thumbnails: Of its changes; None for those that there are none of.
        runs: When and how long the command ran.
        settings: How the results were made.
    """
    title = f"{settings.method} on {_count(summary.tally.files, 'file')}"
    own_style = resources.files("ramen.classify.changes_page").joinpath("assets", "changes.css")
    body = element(
        "body",
        element(
            "header",
            element("h1", title),
            element("p", _lead(settings), class_="soft"),
            _numbers(summary),
        ),
        element(
            "main",
            _changes(summary, thumbnails, settings),
            _over_time(summary),
            _failures(summary, settings),
            _settings(settings, runs),
        ),
    )
    return whole_page(title, asset("utils/style.css") + own_style.read_text(encoding="utf-8"), body)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s'[: number != 1]}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# -- the top --------------------------------------------------------------------------------------------


def _lead(settings: PageSettings) -> Markup:
    return join(
        f"{settings.method} adapts the model {settings.model} while it classifies, without labels. This page "
        "compares its answers with those of the same model without adaptation; ",
        element("code", name(settings.output.name)),
        " has all of them.",
    )


def _numbers(summary: ChangesSummary) -> Markup:
    tally = summary.tally
    before, after = summary.entropies
    facts = {
        "answered": f"{tally.answers:,}",
        "labels changed": f"{tally.changed:,} ({_percent(tally.changed / max(1, tally.answers))})",
        "files failed": f"{tally.errors:,}",
        "mean entropy": f"{before:.2f} {ARROW} {after:.2f}" if tally.answers else "none",
    }
    if tally.fallbacks:
        facts["answered zero-shot"] = f"{tally.fallbacks:,}"
    tiles = [element("div", element("dt", what), element("dd", number)) for what, number in facts.items()]
    return element("dl", *tiles, class_="numbers")


# -- changed labels -------------------------------------------------------------------------------------


def _changes(
    summary: ChangesSummary, thumbnails: Sequence[Thumbnail | None], settings: PageSettings
) -> Markup:
    if not summary.changes:
        nothing = "Adaptation changed no label." if summary.tally.answers else "There are no answers yet."
        return _section("changes", "Changed labels", element("p", nothing))
    shown, more = len(summary.changes), summary.tally.changed - len(summary.changes)
    note = "Grey is the label without adaptation, blue the label with it, each with its probability. "
    if more:
        note += f"These are the {shown:,} with the most probable new labels, the most probable first; "
        note += f"{more:,} more are in {visible(settings.output.name)}, where changed is true."
    else:
        note += "The most probable new labels come first."
    cards = map(_card, summary.changes, thumbnails)
    return _section(
        "changes",
        "Changed labels",
        element("p", note, class_="note"),
        element("ul", *cards, class_="cards"),
        _transitions(summary),
    )


def _card(result: Result, thumbnail: Thumbnail | None) -> Markup:
    if thumbnail is None:
        image = element("span", "no longer there", class_="soft")
    else:
        kind = "pixelated" if thumbnail.pixelated else None
        image = element("img", src=thumbnail.source, alt="", loading="lazy", class_=kind)
    return element(
        "li",
        element("div", image, class_="thumbnail"),
        _guess("before", result.zero_shot_label, result.zero_shot_probability),
        _guess("after", result.label, result.probability),
        element("p", name(_end(result.key)), class_="file", title=visible(result.key)),
    )


def _end(path: str, letters: int = 60) -> str:
    """The end of a long path, which says more than its start."""
    return path if len(path) <= letters else f"…{path[1 - letters :]}"


def _guess(kind: str, label: str | None, probability: float | None) -> Markup:
    percent = 100 * (probability or 0.0)
    return element(
        "p",
        element("span", f"{kind} ", class_="hidden"),
        element("span", name(label or ""), class_="label"),
        element("span", f"{percent:.0f} %", class_="percent"),
        class_=f"guess {kind}",
        style=f"--share:{percent:.1f}%",
    )


def _transitions(summary: ChangesSummary) -> Markup:
    found = summary.transitions.most_common(_TRANSITIONS)
    rows = [
        element("tr", element("td", name(before)), element("td", name(after)), element("td", f"{times:,}"))
        for (before, after), times in found
    ]
    left = len(summary.transitions) - len(found)
    note = (
        element("p", f"{_count(left, 'other pair')} of labels are not shown.", class_="note") if left else ""
    )
    return join(
        element("h3", "From which label to which"), _table(("before", "after", "images"), rows), Markup(note)
    )


def _table(heads: Sequence[str], rows: Sequence[Markup]) -> Markup:
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in heads)))
    table = element("table", head, element("tbody", *rows), class_="plain")
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label="Table")


def _section(anchor: str, title: str, *parts: Markup) -> Markup:
    return element("section", element("h2", title), *parts, id=anchor)


# -- over time ------------------------------------------------------------------------------------------


def _over_time(summary: ChangesSummary) -> Markup:
    if not summary.parts:
        return Markup()
    stretch = f"in the order in which they came, {_count(summary.per_part, 'image')} at a time"
    return _section(
        "time",
        "Over time",
        element("p", f"All answers {stretch}.", class_="soft"),
        element("h3", "Predicted classes"),
        mix_figure(summary),
        element("h3", "How sure the answers are"),
        entropy_figure(summary),
        element(
            "p",
            "Entropy is 0 if one class has all of the probability. Adaptation that goes wrong often shows "
            "here: one class takes over, and the entropy falls to nothing.",
            class_="note",
        ),
    )


# -- failed files ---------------------------------------------------------------------------------------


def _failures(summary: ChangesSummary, settings: PageSettings) -> Markup:
    if not summary.failures:
        return Markup()
    rows = [
        element("tr", element("td", name(result.key)), element("td", visible(_reason(result))))
        for result in summary.failures
    ]
    more = summary.tally.errors - len(summary.failures)
    where = f"{more:,} more are in {visible(settings.output.name)}, in the column error."
    return _section(
        "failed",
        "Files that failed",
        _table(("file", "reason"), rows),
        element("p", where, class_="note") if more else Markup(),
    )


def _reason(result: Result) -> str:
    """The error without the name of the file, which is beside it."""
    reason = (result.error or "").removeprefix(result.key).lstrip(": ")
    return reason or str(result.error)


# -- settings -------------------------------------------------------------------------------------------


def _settings(settings: PageSettings, runs: Sequence[Run]) -> Markup:
    listed = ", ".join(map(visible, settings.classes[:_LISTED]))
    rest = len(settings.classes) - _LISTED
    facts = {
        "model": settings.model,
        "method": settings.method,
        "classes": f"{listed} and {rest:,} more" if rest > 0 else listed,
        **settings.facts,
        "output": visible(str(settings.output)),
        "runs": "; ".join(map(_run, runs)),
    }
    chosen = {key: f" ({why})" for key, why in settings.chosen.items()}
    parameters = {key: f"{value}{chosen.get(key, '')}" for key, value in settings.parameters.items()}
    parts = [_list(facts)]
    if parameters:
        parts += [element("h3", f"Parameters of {settings.method}"), _list(parameters)]
    return _section("settings", "How this was made", *parts)


def _list(facts: Mapping[str, str]) -> Markup:
    rows = [join(element("dt", what), element("dd", value)) for what, value in facts.items()]
    return element("dl", *rows)


def _run(run: Run) -> str:
    started = run.started.replace("T", " ").replace("+00:00", " UTC")
    if run.seconds is None:
        return f"{started}, {_count(run.files, 'file')}" if run.files else f"{started}, ended early"
    rate = f", {run.files / run.seconds:,.0f} per second" if run.seconds and run.files else ""
    return f"{started}, {_count(run.files, 'file')} in {run.seconds:,.0f} s{rate}"
