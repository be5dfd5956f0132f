"""Where in a response its answer stands. `docs/verifiers.md` has the policy in words; the order here is that order."""

from __future__ import annotations

import re

from services.reward.verifiers.cleaning import closing_brace, to_ascii
from services.reward.verifiers.exact import strip_end

TAIL = 10_000
"""Characters at the end of the response in which an answer is looked for."""
MAX_ANSWER = 2_000
"""An answer longer than this is none: it is the response."""

MAX_JOIN = 30
"""Characters between two boxes that are one answer together."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MARK = r"[*_`#\s]*"
_SAYS = r":|=|\b(?:is|are|(?:should|must|would) be|equals)\b"
_ANSWER = re.compile(
    rf"\b(?:final\s+)?answers?\b{_MARK}(?:{_SAYS}){_MARK}:?|答案{_MARK}(?::|是|为){_MARK}:?|^\s*\#{{4}}(?!\#)",
    re.IGNORECASE | re.MULTILINE,
)
_FORMULA = re.compile(r"\$\$(.{1,600}?)\$\$|\$(.{1,600}?)\$|\\\((.{1,600}?)\\\)|\\\[(.{1,600}?)\\\]", re.DOTALL)
_DISPLAY = {"$$": "$$", "\\[": "\\]"}
_SENTENCE_END = re.compile(r"(?<=[^.\s])\.(?=\s+[A-Z])|。(?=.)|(?<=\S)\s+\(?(?:because|since|as|where)\s+|[,;]?\s因为")
_LEAD_IN = re.compile(
    r"^(?:the|so|thus|hence|that|it|this|there)\b[^\d$\\.]{0,80}?\b(?:is|are)\s+(?=[-+\d$\\({\[])", re.I
)
_BARE_LINE = re.compile(r"[*_`\s]*[-+]?[\d.,/%^°\s()\\a-zA-Z{}=$]{1,60}[*_`\s.]*")
_JOINED = re.compile(r"[\s$]*(?:,|;|and|or|和|或|\\\)|\\\()*[\s$]*(?:and|or|和|或|\\\(|,)*[\s$]*")


def answer_of(response: str) -> str | None:
    """The text of the answer, not cleaned, or None.

    The end of the thinking decides where to look; then the last marker counts, be it a box or an `Answer:`; a response
    without any marker has an answer only when its last line is one, or ends in a formula.
    """
    text = after_thinking(response)
    if text is None:
        return None
    text = to_ascii(strip_end(text)[-TAIL:])
    boxes, answers = list(_BOX.finditer(text)), list(_ANSWER.finditer(text))
    if not boxes and not answers:
        return _bounded(_last_line(text))
    if boxes and (not answers or boxes[-1].start() > answers[-1].start()):
        return _bounded(_boxed(text, boxes))
    return _bounded(_marked(text, answers[-1]))


def _bounded(answer: str | None) -> str | None:
    return answer if answer is not None and answer.strip() and len(answer) <= MAX_ANSWER else None


def after_thinking(response: str) -> str | None:
    """What follows the thinking; None when that was never closed: the response was cut off inside it."""
    _, closed, rest = response.rpartition("</think>")
    if closed:
        return rest
    return None if "<think>" in response else response


def _boxed(text: str, boxes: list[re.Match[str]]) -> str | None:
    """The content of the last box, with those that are joined to it by a comma or a word; None when it never closes."""
    found: list[str] = []
    following = len(text)
    for box in reversed(boxes):
        end = closing_brace(text, box.end())
        if end is None:
            return ", ".join(reversed(found)) if found else None
        if found and (following - end > MAX_JOIN or not _JOINED.fullmatch(text, end + 1, following)):
            break
        if end < following:
            found.append(text[box.end() : end])
            following = box.start()
    return ", ".join(dict.fromkeys(reversed(found)))


def _marked(text: str, answer: re.Match[str]) -> str | None:
    """What the line of a marker says, or the first line after it that says anything."""
    after = text[answer.end() :]
    rest, start = after.partition("\n")[0].strip().strip("*_` "), answer.end()
    if not rest:
        line = after.lstrip().partition("\n")[0]
        rest, start = line.strip(), text.find(line, answer.end())
    for opening, closing in _DISPLAY.items():
        if rest.startswith(opening):
            end = text.find(closing, text.find(opening, start) + 2)
            return None if end < 0 else text[text.find(opening, start) + 2 : end]
    return _of_sentence(rest)


def _of_sentence(line: str) -> str:
    """The answer in a line that may go on with words: its only formula, or what its first sentence says."""
    formulas = _FORMULA.findall(line)
    outside = _FORMULA.sub(" ", line)
    if len(formulas) == 1 and not re.search(r"\d", outside) and not line.startswith(("(", "[", "{")):
        after = line[_formula_end(line) :]
        unit = re.match(r"\s*(?:\\?%|°|[A-Za-z]+(?:\^?\d)?(?=[\s.,]*$))", after)
        return "".join(formulas[0]) + (f" {unit.group().strip()}" if unit else "")
    return _SENTENCE_END.split(_LEAD_IN.sub("", line), maxsplit=1)[0]


def _formula_end(line: str) -> int:
    match = _FORMULA.search(line)
    return match.end() if match else 0


def _last_line(text: str) -> str | None:
    """The last line when it is an answer and nothing else, else the formula that it ends with."""
    text = text.strip()
    displays = [match for match in _FORMULA.finditer(text) if match.end() == len(text)]
    if displays:
        return "".join(group for group in displays[-1].groups() if group)
    line = text.rpartition("\n")[2]
    formulas = _FORMULA.findall(line)
    if formulas:
        return "".join(formulas[-1])
    words = re.findall(r"[^\W\d_]{2,}", line)
    return line if _BARE_LINE.fullmatch(line) and len(words) <= 1 else None
