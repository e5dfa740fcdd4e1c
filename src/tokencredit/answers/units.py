"""A quantity and its unit: taken apart, and the unit in one spelling so that two can be compared."""

from __future__ import annotations

import re
from collections import Counter

from tokencredit.answers.spelling import MACRO, TEXT

__all__ = ["ANGLE", "same_unit", "split_unit", "unit_name"]

_PART = MACRO + r"\s*\{[^{}]*\}(?:\^\{?-?\d\}?)?|\^\{?-?\d\}?|\\times |[/ ]"
_WRITTEN = re.compile(rf"(.*?[\w)}}.|])\s*((?:\\frac\s*\{{\s*)?{MACRO}\s*\{{.*)")
_WHOLE = re.compile(
    rf"(?:{_PART}|\\frac|[{{}}]|(?<![A-Za-z\\])(?:[kcmn]?m|[km]?g|s|h|hr|in|ft|[kM]?[JNWVA]|K|C|F|L|m[lL]|[kM]?Hz|[kM]?Pa|mol|erg|yr)(?![A-Za-z]))+"
)
_VARIABLES = r"(?!(?i:[abcnxyzikpqrt]+)(?![A-Za-z]))"  # letters that are rather multiplied
_WORDS = re.compile(
    rf"(.*(?:[\d)}}]|\\pi(?= )))\s*(?<![A-Za-z\\])({_VARIABLES}(?:[A-Za-z]{{3,}}|(?:sq|cu) [a-z]{{1,2}}\b)"
    r"(?:\^\{?-?\d\}?|[ /-](?!\d)[A-Za-z]*)*"
    r"|(?:[ckmn]m|kg|mg|ft|lb|km/h|m/s|mph|hr|oz|ml|mL)(?:\^\{?\d\}?|(?:/| per )[a-z]+(?:\^\{?\d\}?)?)?)"
)
_CHINESE = re.compile(r"(.*[\d)}])\s*([\u4e00-\u9fff]{1,4})")
_CHINESE_VALUES = re.compile(
    "[十百千万亿零一二三四五六七八九半或和且对错上下左右多余至到约近超少几来内外前后负不]"
)
_NO_UNIT = re.compile(
    r"\b(?:or|and|least|most|than|not|mod|if|when|where|only|is|are|for|all|any|no|to|even|odd"
    r"|approx\w*|hundred|thousand|[mbtr]+illion|dozen|am|pm|a\.m|p\.m|choose|times|plus|minus|over|base"
    r"|sin|cos|tan|cot|sec|csc|log|exp|sqrt|pi|infinity|true|false|yes|wrong|incorrect|except|below|above|negative"
    r"|mil|bn|lakhs?|crores?|factorial|halves|thirds|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths)\b"
    r"|\A\s*(?:squared|cubed)\b",
    re.IGNORECASE,
)
_SECOND = re.compile(r"(?<![\w^{-])\d")  # another quantity, as in "1 hour 30 minutes"
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_NAMES = {
    **{"feet": "ft", "foot": "ft", "inch": "in", "inche": "in", "yard": "yd", "mile": "mi", "mi": "mi"},
    **{
        "centimeter": "cm",
        "centimetre": "cm",
        "millimeter": "mm",
        "millimetre": "mm",
        "meter": "m",
        "metre": "m",
    },
    **{
        "kilometer": "km",
        "kilometre": "km",
        "km": "km",
        "cm": "cm",
        "mm": "mm",
        "kg": "kg",
        "nanometer": "nm",
    },
    **{
        "gram": "g",
        "kilogram": "kg",
        "milligram": "mg",
        "pound": "lb",
        "lb": "lb",
        "ounce": "oz",
        "ton": "ton",
    },
    **{"liter": "L", "litre": "L", "l": "L", "milliliter": "mL", "ml": "mL", "gallon": "gal", "quart": "qt"},
    **{
        "hour": "hr",
        "h": "hr",
        "hr": "hr",
        "minute": "min",
        "min": "min",
        "second": "s",
        "sec": "s",
        "day": "day",
    },
    **{
        "deg": "degree",
        "degree": "degree",
        "radian": "rad",
        "rad": "rad",
        "percent": "percent",
        "%": "percent",
    },
    **{"degc": "celsius", "celsiu": "celsius", "degf": "fahrenheit", "usd": "dollar", "buck": "dollar"},
    **{
        "dollar": "dollar",
        "¢": "cent",
        "cent": "cent",
        "joule": "J",
        "newton": "N",
        "watt": "W",
        "kelvin": "K",
    },
    **{"volt": "V", "pascal": "Pa", "hertz": "Hz", "hz": "Hz", "unit": "unit", "元": "yuan", "度": "degree"},
    **{
        "米": "m",
        "厘米": "cm",
        "千米": "km",
        "小时": "hr",
        "分钟": "min",
        "秒": "s",
        "天": "day",
        "千克": "kg",
    },
}
_LENGTHS = re.compile(r"\b(?:mm|cm|dm|m|km|in|inch|ft|yd|mi)\^")
_SPEEDS = {"mph": "mi/hr", "kph": "km/hr", "kmph": "km/hr", "kmh": "km/hr"}


def split_unit(text: str) -> tuple[str, str] | None:
    """The quantity and the unit as written, or None; words such as "or more" are no unit."""
    match = _written(text) or _WORDS.fullmatch(text) or _CHINESE.fullmatch(text)
    if match is None or (
        match.re is _CHINESE and match[2] not in _NAMES and _CHINESE_VALUES.search(match[2])
    ):
        return None
    body, unit = match[1].strip(), match[2]
    words = TEXT.sub(r" \1 ", unit).replace(r"\times ", " ")
    if ";" in unit or _NO_UNIT.search(words) or _SECOND.search(words) or body.count("{") != body.count("}"):
        return None
    if "degree" in unit and ANGLE.search(body):
        return None  # the argument is in degrees, not the value
    if len(body) == 1 or re.search(r"\d|\\(?!text)", body):
        return body, unit
    return None


def _written(text: str) -> re.Match[str] | None:
    match = _WRITTEN.fullmatch(text)
    return match if match and _WHOLE.fullmatch(match[2]) else None


def same_unit(first: str, second: str) -> bool:
    """Whether two names of `unit_name` are the same; "square units" goes with any area, "units" with any length."""
    if "unit" in first or "unit" in second:
        first, second = (_LENGTHS.sub("unit^", name) for name in (first, second))
    return first == second


def unit_name(unit: str) -> str:
    """A unit in one spelling; enough to tell units apart, not to convert them."""
    text = TEXT.sub(r" \1 ", unit).replace(r"\times ", " ").replace(".", " ")
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", text)
    for name, parts in _SPEEDS.items():
        text = re.sub(rf"\b{name}\b", parts, text)
    text = re.sub(r"\bper\b|\\/", "/", text)
    powers: Counter[str] = Counter()
    power, sign = 1, 1
    for word, exponent in re.findall(r"([^\W\d_]+|/|%|¢)\s*(?:\^\s*\{?\s*(-?\d)\s*\}?)?", text):
        folded = word.casefold()
        if word == "/":
            sign = -1
        elif folded in ("square", "sq", "cubic", "cu"):
            power = 2 if folded.startswith("sq") else 3
        elif folded in ("squared", "cubed"):
            last = next(reversed(powers), "")
            powers[last] *= 2 if folded == "squared" else 3
        else:
            name = _name(word)
            powers[name] += sign * power * int(exponent or 1)
            power = 1
    return " ".join(sorted(f"{name}^{count}" for name, count in powers.items() if name and count))


def _name(word: str) -> str:
    """Short symbols keep their case (mW, MW), words do not."""
    folded = word.casefold()
    for candidate in (folded, folded.removesuffix("s"), folded.removesuffix("es")):
        if candidate in _NAMES and (len(word) > 2 or candidate != "l"):
            return _NAMES[candidate]
    return folded.removesuffix("s") if len(word) > 3 else word
