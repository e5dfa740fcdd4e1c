"""In a browser: every text can be read in both themes, tokens of the strongest shade included."""

from __future__ import annotations

import pytest
from page_helpers import ROLES, TOKENS, choose, one, system_theme

from tokencredit.report import render_run

ENOUGH = 4.5  # WCAG 2.2, AA, for text of any size

# For each element that has text of its own: what it says, its colour, and the backgrounds under it, innermost first,
# as sRGB with alpha. The canvas understands every way in which a style can name a colour.
COLOURS = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
canvas.canvas.width = canvas.canvas.height = 1;
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent.trim()).join("");
  if (!text || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName) || !element.getClientRects().length) continue;
  const style = getComputedStyle(element);
  const under = [];
  for (let at = element; at; at = at.parentElement) under.push(rgba(getComputedStyle(at).backgroundColor));
  const colour = element.closest("svg") ? style.fill : style.color;
  found.push([`${element.tagName}.${element.className.baseVal ?? element.className}: ${text}`, rgba(colour), under]);
}
return found;
"""
STRONGEST = """
return Math.max(...[...document.querySelectorAll(".token")].map((token) => token.style.getPropertyValue("--heat")));
"""


def over(top, below):
    alpha = top[3] / 255
    return [alpha * t + (1 - alpha) * b for t, b in zip(top[:3], below, strict=True)]


def luminance(colour):
    """WCAG 2.2, relative luminance."""
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(colour, under):
    background = [255, 255, 255]
    for layer in reversed(under):
        background = over(layer, background)
    one, other = sorted([luminance(over(colour, background)), luminance(background)])
    return (other + 0.05) / (one + 0.05)


def test_black_on_white_and_what_lies_between():
    assert contrast([0, 0, 0, 255], [[0, 0, 0, 0], [255, 255, 255, 255]]) == pytest.approx(21)
    assert contrast([119, 119, 119, 255], [[255, 255, 255, 255]]) == pytest.approx(4.48, abs=0.01)


@pytest.fixture(scope="module")
def report(tmp_path_factory, make_record, make_run):
    folder = tmp_path_factory.mktemp("contrast")
    advantages = [-3.0, 3.0, 1.0, -1.0, 0.0, 0.0, 0.0]
    truth = {"roles": ROLES, "on_path": [True] * 7, "right": [None] * 7}
    record = make_record(TOKENS, advantages=advantages, weights=[0.0, 2.0, 1, 1, 1, 1, 1], **truth)
    record["probability"] = [1.0] * 6 + [0.0]
    metrics = [{"step": step, "reward": 0.1 * step} for step in range(5)]
    runs = [make_run(folder / name, [record], metrics, credit=name, b=name) for name in "uvwxyz"]
    return render_run(runs, folder / "report.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("measure", ["importance", "weight", "advantage", "probability"])
def test_every_text_can_be_read(visit, report, theme, measure):
    page = visit(report)
    system_theme(page, theme)
    try:
        one(page, ".settings summary").click()
        one(page, f"#measures input[value={measure}] + span").click()
        choose(page, "#role", "operand")
        found = page.execute_script(COLOURS)
        strongest = page.execute_script(STRONGEST)
    finally:
        system_theme(page, "light")
    assert strongest == 1
    assert len(found) > 60
    poor = {what: round(contrast(colour, under), 2) for what, colour, under in found}
    assert {what: ratio for what, ratio in poor.items() if ratio < ENOUGH} == {}
