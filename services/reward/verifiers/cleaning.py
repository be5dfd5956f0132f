"""One way to write what people and models write in many: from the text of an answer to plain LaTeX."""

from __future__ import annotations

import re
import unicodedata

MAX_DEPTH = 25
"""Brackets within brackets, up to which an answer is taken apart."""
ROUNDS = 400
"""Passes after which an answer counts as clean: nested wrappings come off one a pass, and an answer is short."""

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_FRACTIONS = {character: unicodedata.normalize("NFKC", character).split("⁄") for character in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_SYMBOLS = {
    **{chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(94)},
    **{character: f" \\frac{{{top}}}{{{bottom}}}" for character, (top, bottom) in _FRACTIONS.items()},
    **dict.fromkeys("−‐‑‒–—﹣", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2009\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad\x00", ""),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("‘’", "'"),
    "、": ",",
    "。": "。",
    "《": "",
    "》": "",
    "【": "[",
    "】": "]",
    "〔": "[",
    "〕": "]",
    "×": "\\times ",
    "÷": "/",
    "·": "\\cdot ",
    "∙": "\\cdot ",
    "√": "\\sqrt ",
    "π": "\\pi ",
    "∞": "\\infty ",
    "≤": "\\leq ",
    "≥": "\\geq ",
    "≠": "\\neq ",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∈": "\\in ",
    "∅": "\\emptyset ",
    "±": "\\pm ",
    "≈": "\\approx ",
    "°": "^\\circ",
    "º": "^\\circ",
    "⁄": "/",
    "∕": "/",
    "ℝ": "\\mathbb{R}",
    "ℤ": "\\mathbb{Z}",
    "ℚ": "\\mathbb{Q}",
    "ℕ": "\\mathbb{N}",
    "ℂ": "\\mathbb{C}",
}
_TABLE = str.maketrans(_SYMBOLS)
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")

_DELETED = re.compile(
    r"\\(?:left|right|[Bb]igg?[lr]?|displaystyle|textstyle|limits|nolimits|rm|bf|it|mathstrut|hfill)(?![A-Za-z])|\\!"
)
_SPACED = re.compile(r"\\(?:quad|qquad|enspace|thinspace|space)(?![A-Za-z])|(?<!\\)\\[,;:> \n]|(?<!\\)~|\s+")
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|normal)|mbox|operatorname\*?|bm|boldsymbol|emph)"
    r"\s*\{([^{}]*)\}"
)
_BOX = re.compile(r"(?:\\(?:boxed|fbox)\s*)?\{")
_REWRITTEN = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\[dt]binom(?![A-Za-z])"), r"\\binom"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\d)"), r"\1{\2}"),
    (re.compile(r"\\sqrt\s*(\w)"), r"\\sqrt{\1}"),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])"), r"\\infty"),
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi"),
    (re.compile(r"\\le(?![A-Za-z])|<="), r"\\leq"),
    (re.compile(r"\\ge(?![A-Za-z])|>="), r"\\geq"),
    (re.compile(r"\\ne(?![A-Za-z])|(?<![\d)!])!="), r"\\neq"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\(?:lbrace|\{)"), r"\\{"),
    (re.compile(r"\\(?:rbrace|\})"), r"\\}"),
    (re.compile(r"\\(?:lvert|rvert|vert)(?![A-Za-z])"), "|"),
    (re.compile(r"\{\s*,\s*\}"), ","),
    (re.compile(r"\^\s*\{?\s*(?:\\circ|\\degree)\s*\}?|\\degree(?![A-Za-z])"), "°"),
    (re.compile(r"\\%|%"), "%"),
    (re.compile(r"\*\*(?=\s*[\d({\\-])"), "^"),
    (re.compile(r"\\\$|[€£¥$]"), ""),
    (re.compile(r"(?<=\d)\s+(?=[%°])"), ""),
)
_PAIRS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("__", "__"), ("*", "*"))
_QUOTES = (("`", "`"), ('"', '"'), ("'", "'"), ("``", "''"))
_TRAILING = re.compile(r"(?:[\s.,;:?。]|\\\\|\*\*)+$")
_LEADING = re.compile(r"^(?:[\s:：=]|\\\\)+")


def to_ascii(text: str) -> str:
    """Full-width, typographic and mathematical characters as ASCII and LaTeX; invisible ones go."""
    if text.isascii() and "\x00" not in text:
        return text
    text = text.translate(_TABLE)
    return _SUPERSCRIPT.sub(lambda match: f"^{{{match.group().translate(_SUPERSCRIPTS)}}}", text)


def clean(answer: str) -> str:
    """The answer in plain LaTeX: no wrappings, no spacing commands, no final full stop. Cleaning twice is once."""
    for _ in range(ROUNDS):
        cleaner = _once(answer)
        if cleaner == answer:
            break
        answer = cleaner
    return answer


def _once(text: str) -> str:
    text = to_ascii(text)
    text = _SPACED.sub(" ", _DELETED.sub("", text)).strip()
    text = _WRAPPED.sub(_unwrapped, text)
    text = _LEADING.sub("", _TRAILING.sub("", text) if not text.endswith("\\}") else text)
    text = _without_delimiters(_without_box(text))
    for pattern, form in _REWRITTEN:
        text = pattern.sub(form, text)
    return re.sub(r" +", " ", text).strip()


def _unwrapped(match: re.Match[str]) -> str:
    """Words keep a space on both sides, so that `5\\text{cm}` reads `5 cm`."""
    return f" {match[1]} " if match[1].strip() else " "


def _without_box(text: str) -> str:
    """What is inside when all of the text is one box, or one pair of braces."""
    box = _BOX.match(text)
    if box and closing_brace(text, box.end()) == len(text) - 1:
        return text[box.end() : -1]
    return text


def nesting(text: str) -> int:
    """How deep brackets stand within brackets."""
    deepest = depth = 0
    for bracket in re.findall(r"[({\[]|[)}\]]", text):
        depth += 1 if bracket in "({[" else -1
        deepest = max(deepest, depth)
    return deepest


def closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one before `start`, or None."""
    depth = 1
    at = start
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None


def _without_delimiters(text: str) -> str:
    for opening, closing in (*_PAIRS, *_QUOTES):
        inner = text[len(opening) : len(text) - len(closing)]
        whole = len(text) > len(opening) + len(closing) - 1 and text.startswith(opening) and text.endswith(closing)
        if whole and opening not in inner and closing not in inner:
            return inner.strip()
    return text
