"""Tables, and the heat map and the top tokens of a completion, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from tokencredit.report.tables import Table
from tokencredit.report.text import are_words, visible, visible_tokens

# From pale to deep, all light enough for black ink, so that the terminal's own background does not matter. The
# first step is bare: a page full of pale tokens would hide the few that matter.
_HEAT = ("", "#fff0b8", "#fddc8c", "#fbb862", "#f78f4a", "#f2664a")
_INK = "#000000"


def top_tokens(record: Mapping[str, Any], k: int = 5) -> list[tuple[int, str, float, float]]:
    """Return the `k` most important tokens as (index, token, importance, weight), the greatest first.

    Tokens without importance are never among them; ties go to the earlier token.
    """
    found = [(i, value) for i, value in enumerate(record["importance"]) if value is not None and value > 0]
    found.sort(key=lambda pair: -pair[1])
    return [(i, record["tokens"][i], value, record["weights"][i]) for i, value in found[:k]]


def heat_text(record: Mapping[str, Any], *, colour: bool = True, k: int = 5) -> Text:
    """Return the completion as text: background by importance, the answer bold and underlined.

    Tokens under a thirty-sixth of the largest importance stay bare. Without `colour` the `k` most important
    tokens stand in brackets instead.
    """
    texts = visible_tokens(record["tokens"])
    values = [value or 0.0 for value in record["importance"]]
    largest = max(values, default=0.0)
    top = set() if colour else {index for index, *_ in top_tokens(record, k)}
    start, end = record["answer"] or (0, 0)
    gap = " " if are_words(record["tokens"]) else ""
    text = Text()
    for index, (token, value) in enumerate(zip(texts, values, strict=True)):
        style = "bold underline " if start <= index < end else ""
        heat = _heat(value / largest) if colour and value > 0 else ""
        if heat:
            style += f"{_INK} on {heat}"
        text.append(gap if index else "")
        text.append(_bracketed(token) if index in top else token, style=style.strip())
    return text


def _heat(fraction: float) -> str:
    # The square root lets one see more than the single greatest token.
    return _HEAT[min(int(fraction**0.5 * len(_HEAT)), len(_HEAT) - 1)]


def _bracketed(token: str) -> str:
    body = token.strip() or token
    return token.replace(body, f"[{body}]", 1)


@dataclass(frozen=True)
class HeatMap:
    """A completion that shows its importance as the console allows: by colour, or by brackets."""

    record: Mapping[str, Any]
    k: int = 5

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colour = console.color_system is not None and not console.no_color
        yield heat_text(self.record, colour=colour, k=self.k)


def heat_map(record: Mapping[str, Any], k: int = 5) -> HeatMap:
    """Return the completion of `record` for printing with rich.

    Background by importance and the answer bold and underlined; where the console has no colour (NO_COLOR, a
    pipe) the `k` most important tokens stand in brackets. Markup in tokens is not interpreted and control
    characters are made visible.
    """
    return HeatMap(record, k)


def top_table(record: Mapping[str, Any], k: int = 5) -> RichTable:
    """Return the `k` most important tokens as a table: index, token, importance, weight, role if known."""
    title = Text(f"top tokens by {visible(record['credit'])}")
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    roles = record.get("roles")
    table.add_column("#", justify="right")
    table.add_column("token")
    table.add_column("importance", justify="right")
    table.add_column("weight", justify="right")
    if roles:
        table.add_column("role")
    for index, token, importance, weight in top_tokens(record, k):
        shown = visible_tokens([token])[0].replace("\n", "")
        cells = [Text(str(index)), Text(shown), Text(f"{importance:.3g}"), Text(f"{weight:.2f}")]
        table.add_row(*cells, *([Text(roles[index])] if roles else []))
    return table


def in_terminal(table: Table) -> RichTable:
    """Return a report's table for a console; markup in its texts is not interpreted."""
    table = table.visible()
    shown = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column(Text(table.head))
    for column in table.columns:
        shown.add_column(Text(column), justify="right" if column else "left", no_wrap=bool(column))
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown
