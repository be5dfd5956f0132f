"""Numbers as answers are written: exact values, and what is known about their precision and unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_EXPONENT = 10_000
"""Largest power of ten that is read as a number."""
MIN_ROUNDED_DECIMALS = 3
"""A decimal with so many digits after the point, and as many significant ones, may stand for what it rounds."""

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_POWER = r"(?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*([-+]?\d+)\s*\}|\(?([-+]?\d+)\)?)|[eE]([-+]?\d+))"
_REST = r"(?P<rest>\s*(?:%|°|[^\W\d_]|\\(?:percent|mu|Omega)).*)?"
_PLAIN = re.compile(rf"(?P<sign>[-+]?)\s*(?P<digits>{_DECIMAL}){_POWER}?(?![\d.,]){_REST}", re.DOTALL)
_BRACED = r"\\frac\s*\{\s*([-+]?\d+)\s*\}\s*\{\s*([-+]?\d+)\s*\}"
_RATIO = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)\s*(?=\\frac)|(?P<spaced>\d+)\s+(?=\d+\s*/))?"
    rf"(?:{_BRACED}|([-+]?\d+)\s*/\s*(\d+)){_REST}",
    re.DOTALL,
)
_PERCENT = re.compile(r"%|percent(?:age)?\b|per\s?cent\b|pct\b|\\percent", re.IGNORECASE)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "万": 10**4, "亿": 10**8}
_NO_UNITS = frozenset(
    {"or", "and", "to", "mod", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "not", "或", "和", "到"}
)
_WORD_UNIT = re.compile(r"[^\W\d_]+(?:[ /·-]+[^\W\d_]+){0,3}(?:\s*\^?\s*\{?[23]\}?)?(?:/[a-z]+(?:\^?\{?[23]\}?)?)?")

_SAME_UNITS = (
    ("°", "deg", "degree", "degrees", "度"),
    ("m", "meter", "meters", "metre", "metres", "米"),
    ("cm", "centimeter", "centimeters", "centimetre", "centimetres", "厘米"),
    ("mm", "millimeter", "millimeters", "millimetre", "millimetres", "毫米"),
    ("km", "kilometer", "kilometers", "kilometre", "kilometres", "千米", "公里"),
    ("in", "inch", "inches"),
    ("ft", "foot", "feet"),
    ("mi", "mile", "miles"),
    ("g", "gram", "grams", "克"),
    ("kg", "kilogram", "kilograms", "千克", "公斤"),
    ("s", "sec", "second", "seconds", "秒"),
    ("min", "minute", "minutes", "分钟"),
    ("h", "hr", "hour", "hours", "小时"),
    ("day", "days", "天"),
    ("l", "liter", "liters", "litre", "litres", "升"),
    ("mph", "miles per hour", "mi/h"),
    ("km/h", "kmh", "kph", "kilometers per hour"),
    ("dollar", "dollars", "usd"),
    ("cent", "cents"),
)
_UNITS = {name: names[0] for names in _SAME_UNITS for name in names}


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value. `decimals` counts the digits after the point of a decimal and is None for other forms.

    `unit` is the name of a known unit, and empty for none or one that the policy does not know.
    """

    value: Fraction
    decimals: int | None = None
    percent: bool = False
    unit: str = ""


def read_number(text: str) -> Number | None:
    """The number that cleaned text is, or None."""
    match = _PLAIN.fullmatch(text)
    if match:
        return _with_rest(*_plain(match), match["rest"])
    match = _RATIO.fullmatch(text)
    if match:
        value = _ratio(match)
        return None if value is None else _with_rest(value, None, match["rest"])
    return None


def same_number(one: Number, other: Number) -> bool:
    """Equal values, or one is a decimal that rounds the other; a percentage may stand for its number of per cents.

    Symmetric. Two different known units are never equal; a unit on one side only does not count.
    """
    if one.unit and other.unit and one.unit != other.unit:
        return False
    if _same_value(one, other):
        return True
    if one.percent == other.percent:
        return False
    percentage, bare = (one, other) if one.percent else (other, one)
    return bare.value == 100 * percentage.value


def _same_value(one: Number, other: Number) -> bool:
    return one.value == other.value or rounds(one, other.value) or rounds(other, one.value)


def rounds(short: Number, value: Fraction) -> bool:
    """Whether `short` is a decimal of enough digits and `value`, rounded to as many, is it."""
    if short.decimals is None or short.decimals < MIN_ROUNDED_DECIMALS:
        return False
    scale = Fraction(10) ** short.decimals
    if abs(short.value) * scale < 10 ** (MIN_ROUNDED_DECIMALS - 1):
        return False
    # Half a unit of the last place, and both ways of rounding a half.
    return abs(value - short.value) * scale <= Fraction(1, 2)


def _plain(match: re.Match[str]) -> tuple[Fraction | None, int | None]:
    digits = match["digits"].replace(",", "").replace(" ", "")
    whole, point, decimals = digits.partition(".")
    value = Fraction(int((whole or "0") + decimals), 10 ** len(decimals))
    power = next((group for group in match.groups()[2:5] if group), None)
    if power is not None:
        if len(power) > 6 or abs(int(power)) > MAX_EXPONENT:
            return None, None
        value *= Fraction(10) ** int(power)
    value = -value if match["sign"] == "-" else value
    return value, len(decimals) if point and power is None else None


def _ratio(match: re.Match[str]) -> Fraction | None:
    tops = [group for group in match.groups()[3:7] if group]
    top, bottom = int(tops[0]), int(tops[1])
    whole = match["whole"] or match["spaced"]
    if bottom == 0 or (whole and (top < 0 or bottom < 0)):
        return None
    value = Fraction(top, bottom) + int(whole or 0)
    return -value if match["sign"] == "-" else value


def _with_rest(value: Fraction | None, decimals: int | None, rest: str | None) -> Number | None:
    """The number with what stands behind it: a percent sign, a scale such as `million`, a unit, or words."""
    if value is None:
        return None
    spaced = bool(rest) and str(rest).startswith(" ")
    rest = (rest or "").strip()
    if not rest:
        return Number(value, decimals)
    if _PERCENT.fullmatch(rest):
        return Number(value / 100, None if decimals is None else decimals + 2, percent=True)
    word, _, further = rest.partition(" ")
    if word.lower() in _SCALES:
        return _with_rest(value * _SCALES[word.lower()], None, further)
    return _with_unit(value, decimals, rest, spaced)


def _with_unit(value: Fraction, decimals: int | None, rest: str, spaced: bool) -> Number | None:
    """A known unit, or words that name one; a letter or two right behind the digits are a product of variables."""
    unit = " ".join(rest.replace("{", "").replace("}", "").replace("^", "").split()).lower()
    base = unit.rstrip("23")
    if base in _UNITS and (spaced or len(base) > 1 or not base.isalpha() or not base.isascii()):
        return Number(value, decimals, unit=_UNITS[base] + unit[len(base) :])
    words = re.findall(r"[^\W\d_]+", unit)
    if not _WORD_UNIT.fullmatch(rest) or set(words) & _NO_UNITS:
        return None
    if words[0].isascii() and not (spaced and len(words[0]) >= 3):
        return None
    return Number(value, decimals)
