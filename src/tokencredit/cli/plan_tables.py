"""The plan of a training step in the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tokencredit.plan import Part, Plan, strategies

WIDTH = 120


def show(name: str, plan: Plan, changes: dict[str, Any], better: Plan) -> None:
    """Print the tables, then what they say."""
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    settings = plan.settings
    devices = f"{settings.gpus} device{'s' if settings.gpus > 1 else ''}"
    console.print(
        f"{name}: {_millions(plan.shape.parameters)} parameters, {devices} of {plan.machine.memory / 1e9:.3g} GB, "
        f"{plan.usable / 1e9:.3g} of them usable",
        highlight=False,
        markup=False,
    )
    console.print(parts_table(plan))
    console.print(held_table(plan))
    console.print(strategies_table(plan))
    for line in statements(plan, changes, better):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def parts_table(plan: Plan) -> Table:
    """One row a part of a step, on one device."""
    table = _table(
        "A step on one device", "part", "forward", "back", "tokens", "TFLOP", "seconds", "of step", "peak GB"
    )
    for part in plan.parts:
        work = part.work
        table.add_row(
            part.name,
            f"{work.forwards:,}",
            f"{work.backwards:,}",
            f"{work.tokens:,}",
            _digits(work.flops / 1e12),
            _digits(part.seconds),
            f"{part.seconds / plan.seconds:.1%}",
            _memory(part, plan),
        )
    table.add_row(
        "all", "", "", "", "", _digits(plan.seconds), "", _digits(max(p.bytes for p in plan.parts) / 1e9)
    )
    return table


def held_table(plan: Plan) -> Table:
    """What every part finds in memory already; gradients are there while training goes on."""
    table = _table("Held on each device", "", "GB")
    held = plan.held
    for label, size in (
        ("weights", held.weights),
        ("reference model", held.reference),
        ("gradients, in training", held.gradients),
        ("AdamW", held.optimizer),
        ("vLLM", held.sampler),
    ):
        if size:
            table.add_row(label, _digits(size / 1e9))
    return table


def strategies_table(plan: Plan) -> Table:
    """Attribution in each of its forms, all else as planned."""
    table = _table(
        "Attribution by strategy", "strategy", "forward", "back", "TFLOP", "seconds", "of step", "peak GB"
    )
    for label, other in strategies(plan).items():
        part = other.part("attribution")
        table.add_row(
            label,
            f"{part.work.forwards:,}",
            f"{part.work.backwards:,}",
            _digits(part.work.flops / 1e12),
            _digits(part.seconds),
            f"{other.attribution_share:.1%}",
            _memory(part, other),
        )
    return table


def statements(plan: Plan, changes: dict[str, Any], better: Plan) -> list[str]:
    """What the tables say: the step, attribution's share, what doesn't fit and what to change."""
    settings = plan.settings
    served = f"{plan.optimizer_steps:.3g} optimizer step{'' if plan.optimizer_steps == 1 else 's'}"
    lines = [
        f"A step is one generation of {settings.rows * settings.gpus:,} completions and the {served} that it serves.",
        f"Attribution ({settings.credit}) takes {plan.attribution_share:.1%} of it, {plan.budget:,} tokens a pass.",
    ]
    if plan.fits:
        return [*lines, "Everything fits."]
    for part in plan.too_large:
        over = (part.bytes - plan.usable) / 1e9
        lines.append(f"Does not fit: {part.name} takes {part.bytes / 1e9:.3g} GB, {over:.3g} too many.")
    if plan.sampler_lacks:
        lines.append(
            f"Does not fit: vLLM lacks {plan.sampler_lacks / 1e9:.3g} GB for its weights and one completion."
        )
    if not changes:
        return [
            *lines,
            "No change of flags that a plan knows makes it fit: take larger devices or a smaller model.",
        ]
    flags = " ".join(f"--{name} {_value(value)}" for name, value in changes.items())
    end = "then everything fits" if better.fits else "which is still not enough"
    largest = max(part.bytes for part in better.parts) / 1e9
    return [*lines, f"Change to {flags}: {end}, at most {largest:.3g} GB on a device."]


def _millions(count: int) -> str:
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _memory(part: Part, plan: Plan) -> str:
    return _digits(part.bytes / 1e9) + (" too large" if part in plan.too_large else "")


def _digits(value: float) -> str:
    if not value:
        return "0"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in ("part", "strategy", "") else "right")
    return table
