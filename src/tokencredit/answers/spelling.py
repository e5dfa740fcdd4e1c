"""One spelling for what is written in several ways; the value stays what it was."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tokencredit.answers.boxes import without_boxes
from tokencredit.answers.extraction import MATH
from tokencredit.answers.plain_numbers import number

__all__ = ["MACRO", "TEXT", "clean"]

MACRO = r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|rm)"  # puts words into a formula
TEXT = re.compile(rf"{MACRO}\s*\{{([^{{}}]*)\}}")
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_CODES = {"USD": "dollar", "EUR": "euro", "GBP": "pound", "Rs": "rupee"}
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NUMBER_WORDS = {
    word: str(value)
    for value, word in enumerate(
        re.findall(
            r"\w+",
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty",
        )
    )
}
_SIGNS = str.maketrans(
    {
        **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94) if chr(0x21 + i) not in "."},
        **{
            "−": "-",
            "–": "-",
            "—": "-",
            "﹣": "-",
            "、": ", ",
            "，": ", ",
            "；": "; ",
            "．": ".",
            "′": "'",
            "″": "''",
        },
        **{
            "²": "^{2}",
            "³": "^{3}",
            "⁴": "^{4}",
            "·": r"\cdot ",
            "⋅": r"\cdot ",
            "∗": "*",
            "÷": "/",
            "∕": "/",
        },
        **{
            "½": r"\frac{1}{2}",
            "¼": r"\frac{1}{4}",
            "¾": r"\frac{3}{4}",
            "⅓": r"\frac{1}{3}",
            "⅔": r"\frac{2}{3}",
        },
        **{"≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "∈": r"\in ", "∅": r"\emptyset ", "∞": r"\infty "},
        **{"π": r"\pi ", "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ", "ℝ": r"\mathbb{R}", "≈": r"\approx "},
        **{"θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "√": r"\sqrt", "\u00a0": " ", "\u202f": " "},
    }
)
_FUNCTIONS = (
    "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|exp|log|ln|max|min|gcd|lcm|det|Re|Im"
)
_DIGITS = r"-?\d(?:[\d.,]*\d)?"
_SPELLINGS: list[tuple[re.Pattern[str], Any]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"(?<=\d)\s*(?:\{,\}|,\\!|\\!,|\\,)\s*(?=\d{3}(?!\d))", ""),
        (r"(?<=\d)\{,\}(?=\d)", "."),
        (r"\\(?:left|right|[Bb]igg?[lr]?|displaystyle|textstyle|limits|middle)(?![A-Za-z])\.?", ""),
        (
            r"(?<!\\)\\[!,;:>]|\\(?:[hv]?phantom)\s*(?:\{[^{}]*\}|\S)|\\(?:nolimits|boldsymbol|bm)(?![A-Za-z])",
            " ",
        ),
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),
        (r"\*\*", ""),
        (r"(?<!\\)\\ |~|\\q?quad\b|\s+", " "),
        (r"×|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])\s*", r"\\times "),
        (r"(\\(?:text|mathrm)\s*\{[^{}]*)\^\{(-?\d)\}(?=[^{}]*\})", r"\1^\2"),
        (
            r"[(\[]\s*\\begin\{array\}(?:\{[^{}]*\})?(.*?)\\end\{array\}\s*[)\]]",
            r"\\begin{pmatrix}\1\\end{pmatrix}",
        ),
        (r"^\\begin\{(cases|aligned|array|gathered)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\}$", lambda m: _lines(m)),
        (r"^\\\{\s*([a-z])\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:\||:|\\mid)(.*\1.*)\\\}$", r"\2"),
        (r"^\\text\s*\{[^{}]*:\s*\}", ""),
        (r"\\(?:text|math)dollar(?![A-Za-z])", r"\\$"),
        (r"\\pounds(?![A-Za-z])", "£"),
        (r"\\euro(?![A-Za-z])", "€"),
        (r"\bUS(?=\\?\$)", ""),
        (r"\s*(?:或者?|和|与|及|且)\s*", "; "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\\{\s*\\\}", r"\\emptyset "),
        (r"\{?\s*(\w{1,9})\s*\\choose\s*(\w{1,9})\s*\}?", r"\\binom{\1}{\2}"),
        (r"\\text\s*\{\s*,\s*\}", ", "),
        (r"^(?:[Oo]ption|[Cc]hoice) (?=\(?[A-J]\b)", ""),
        (
            r"((?:[<>]|\\(?:leq?|geq?)(?![A-Za-z]))[^;,]*?)(?:\\text\s*\{\s*or\s*\}|\bor\b)(?=[^;,]*(?:[<>]|\\[lg]eq?(?![A-Za-z])))",
            r"\1\\cup ",
        ),
        (r",\s+|\s*;\s*|\s*,?\s*(?:\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*", ";"),
        (r";+", ";"),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\[dt]binom", r"\\binom"),
        (r"\\binom\s*(\d)\s*(\d)", r"\\binom{\1}{\2}"),
        (r"\bdegrees?\s+(C|F)(?:elsius|ahrenheit)?\b", r"deg\1"),
        (r"\{\\(?:rm|bf|it)\s+([^{}]*)\}", r"\\text{\1}"),
        (rf"\\operatorname\*?\s*\{{(?!(?:{_FUNCTIONS})\}})([A-Za-z]+)\}}", r"\\text{\1}"),
        (r"\\frac\s*(\d|\\(?:pi|sqrt\{\d+\})|[A-Za-z])\s*(?=[\d{\\A-Za-z])", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\\pi|\w)", r"\1{\2}"),
        (r"\\varnothing(?![A-Za-z])|\\O(?![A-Za-z])", r"\\emptyset "),
        (r"\binfinity\b", r"\\infty "),
        (r"\bnp\.|\bmath\.|\\operatorname\*?\s*\{([a-z]+)\}", lambda m: f"\\{m[1]} " if m[1] else ""),
        (r"(?<![\\A-Za-z])a(sin|cos|tan)(?=[({])", r"\\arc\1"),
        (
            r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|exp|log|ln|sqrt)(?=\s*[({^\\_])",
            r"\\\1",
        ),
        (r"\\lg(?![A-Za-z])", r"\\log_{10}"),
        (r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])", "|"),
        (r"\\leqslant|\\le(?![A-Za-z])", r"\\leq "),
        (r"\\geqslant|\\ge(?![A-Za-z])", r"\\geq "),
        (r"\\ne(?![A-Za-z])", r"\\neq "),
        (
            r"(?:\^\s*\{?\s*(?:\\circ)\s*\}?|°)\s*(?:\\(?:text|mathrm)\s*\{\s*([CF])\s*\}|([CF])\b)",
            r"\\text{deg\1\2}",
        ),
        (
            r"°|\^\s*\{?\s*\\circ\s*\}?|\\degree\b|(?<=\d)\^\s*(?:o\b|\{o\})|\\(?:text|mathrm)\s*\{\s*degrees?\s*\}|\s*\bdegrees?\b",
            r"\\text{degree}",
        ),
        (r"(?<=\d)\s*\^\s*\{?(?:\\prime\s*\\prime|'')\}?|(?<=\d)\s*''", r"\\text{arcsec}"),
        (r"(?<=\d)\s*\^\s*\{?\\prime\}?|(?<=\d)'", r"\\text{arcmin}"),
        (r"'", r"^{\\prime}"),
        (r"\\(?:text|mathrm)\s*\{\s*(?:percent|\\?%)\s*\}|\\?%|\bpercent\b", r"\\text{percent}"),
        (
            rf"(?<![\w}}\\])(-?)(\\?[$]|[€£¥₹])\s*({_DIGITS}(?:\s*\\frac\{{\d+\}}\{{\d+\}})?|\\frac\{{\d+\}}\{{\d+\}})(?![\d.,]*[A-Za-z])",
            lambda m: f"{m[1]}{m[3]}\\text{{{_CURRENCIES[m[2][-1]]}}}",
        ),
        (r"(\d)\s*(\\[$]|[€£¥₹])(?!\s*\d)", lambda m: f"{m[1]}\\text{{{_CURRENCIES[m[2][-1]]}}}"),
        (r"(\d)\s*¢", r"\1\\text{cent}"),
        (
            rf"(?<![A-Za-z\\])(?:\\text\s*\{{\s*)?(USD|EUR|GBP|Rs)\b\.?\s*\}}?\s*({_DIGITS})(?![\d.,]*[A-Za-z])",
            lambda m: f"{m[2]}\\text{{{_CODES[m[1]]}}}",
        ),
        (
            r"(\d)\s*(\\text\{dollar\})?\s*(\\text\s*\{)?\s*\b(hundred|thousand|million|billion|trillion)\b",
            lambda m: f"{m[1]}\\times 10^{{{_MAGNITUDES[m[4]]}}}{m[2] or ''}{m[3] or ''}",
        ),
        (r"\\text\s*\{\s*\}", ""),
        (r"(?<=\d)\s*[xX*]\s*(?=10\s*\^)", r"\\times "),
        (r"(\d)\s*(?:\^\s*\{?\s*)?(?:\\(?:text|mathrm)\s*\{\s*)?(?:st|nd|rd|th)\b\s*\}{0,2}", r"\1"),
        (r"\\sqrt\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z]|\\pi))", r"\\sqrt{\1\2}"),
        (r"_\{(\w)\}(?!\w)|(?<=\d)_\{(\w+)\}(?!\w)", r"_\1\2"),
        (r"(?<!\\)\{(\d{1,3}(?:,\d{3})+)\}", lambda m: "{" + m[1].replace(",", "") + "}"),
        (r"(?<=\d)\.(?=[^\d.]|$)(?!\\(?:overline|bar|dot))", ""),
        (r"(?<![\d.}^_,])(\d+)\s*(\\frac\{\d+\}\{\d+\})", r"(\1+\2)"),
    ]
]
_TIDY = re.compile(r"\s*([-+=<>,;^_(){}\[\]/|]|\\times )\s*")
_COLOUR = re.compile(r"\\(?:text)?color\s*\{\w+\}")
_AROUND = re.compile(r"(?:\\(?:underline|mathbf|boldsymbol|bm)\s*)?\{((?:[^{}]|\{[^{}]*\})*)\}")
_END = re.compile(r"(?:\\[,;:! ]|[.,;:。\s]|\\q?quad)+\Z")
_HEDGE = re.compile(
    r"^(?:\\approx\s*|\\sim\s*|(?:approximately|about|around|roughly)\s+|(?:[a-z]\s*)?\\approx\s*)"
)
_TWICE = re.compile(r"([^=;<>]+)=([^=;<>]+)")  # 0.56 = 56%
_ROUNDED = re.compile(
    r"(?<=[\d})])\s*\\approx(?![A-Za-z])[^,;]*\Z"
)  # 2/3, about 0.67: the exact value counts
_SIGN_WORD = re.compile(r"^(?:minus|negative)\s+(?=[\d\\])")


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    """One spelling for what is written in several ways; the value stays what it was.

    List items are parted by ";" where a comma cannot be a thousands separator, else by ",".
    """
    text = without_boxes(text) if "boxed" in text or "fbox" in text else text
    text = text.translate(_SIGNS).strip().strip('`"“”')
    text = _END.sub("", text) if not text.endswith("...") else text
    text = _unwrapped(text)
    if text.count("$") - text.count(r"\$") > 1:
        text = re.sub(r"(?<!\\)\$", "", text)
    text = _ROUNDED.sub("", _SIGN_WORD.sub("-", _HEDGE.sub("", text)))
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _TIDY.sub(r"\1", text.strip()).strip(";,")
    alone = TEXT.fullmatch(text)
    if alone and not re.fullmatch(r"\s*[a-z]{3}\s*", alone.group(1)):  # which might be a product of letters
        text = alone.group(1).strip()
    twice = _TWICE.fullmatch(text)
    if (
        twice
        and twice[1] != twice[2]
        and _value(twice[1]) is not None
        and _value(twice[1]) == _value(twice[2])
    ):
        text = twice[1]
    return _NUMBER_WORDS.get(text.casefold(), text)


def _lines(match: re.Match[str]) -> str:
    """The equations of a system as a list."""
    lines = [line.strip(" ,") for line in match[2].replace("&=", "=").replace("=&", "=").split(r"\\")]
    lines = [line for line in lines if line]
    return match[0] if not all("=" in line and "&" not in line for line in lines) else "; ".join(lines)


def _value(text: str) -> Fraction | Decimal | None:
    plain = text.removesuffix(r"\text{percent}")
    value = number(plain)
    return value / 100 if value is not None and plain != text else value


def _unwrapped(text: str) -> str:
    """Without the delimiters or the font around the whole."""
    text = _COLOUR.sub("", text)
    while wrapped := MATH.fullmatch(text) or TEXT.fullmatch(text) or _AROUND.fullmatch(text):
        inner = wrapped.group(wrapped.lastindex or 0).strip().rstrip(".,;")
        if re.search(r"(?<!\\)\$", inner) or r"\)" in inner or r"\]" in inner:
            break
        if TEXT.fullmatch(text) and re.fullmatch(r"[a-z]{3}", inner):
            break
        text = inner
    return re.sub(r"(?<!\\)\\[()\[\]]", " ", text).strip() if "\\" in text else text
