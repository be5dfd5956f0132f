"""When two answers are equal. Symmetric throughout; `docs/verifiers.md` has the policy in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from services.reward.verifiers.math.algebra import constant_of, same_expression
from services.reward.verifiers.math.number import Number, rounds, same_number
from services.reward.verifiers.math.structure import NAME, Answer, Formula, Matrix, Parts, Words, read_answer, split

_SET_LIKE = re.compile(r"[<>|]|\\(?:leq|geq|neq|mathbb|cap|setminus|emptyset|in|notin|Re)(?![A-Za-z])")


def same_answer(one: Answer, other: Answer) -> bool:
    """Whether two answers are equal. A name before an equals sign counts only when both have one."""
    if one.name and other.name and one.name != other.name:
        return False
    if _bare(one.text) == _bare(other.text):
        return True
    left, right = one.value, other.value
    if isinstance(left, Number) and isinstance(right, Number):
        return same_number(left, right)
    if isinstance(left, Words) and isinstance(right, Words):
        return left.text == right.text
    if isinstance(left, Parts) and isinstance(right, Parts):
        return _same_parts(left, right)
    if isinstance(left, Matrix) or isinstance(right, Matrix):
        return _same_matrix(left, right)
    return _whole(one, other)


def _bare(text: str) -> str:
    """`text` without white space, but for that between two letters or digits."""
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", text)


def _whole(one: Answer, other: Answer) -> bool:
    """What is left when neither is compared part by part."""
    for chain, answer in ((one, other), (other, one)):
        sides = _sides(chain)
        if sides and not answer.name and not _sides(answer):
            return all(same_answer(side, answer) for side in sides)
        if sides and answer.name:
            return same_expression(chain.text, f"{answer.name} = {answer.text}")
        if isinstance(chain.value, Parts) and not isinstance(answer.value, Parts) and not _may_be_a_set(chain, answer):
            return False
        alone = _only_element(chain)
        if alone is not None and not isinstance(answer.value, Parts):
            return same_answer(alone, answer)
    return _same_formula(one, other)


def _may_be_a_set(parts: Answer, other: Answer) -> bool:
    """Whether algebra could find several parts equal to one thing: a relation or a named set, or a set of one."""
    return _only_element(parts) is not None or re.search(_SET_LIKE, other.text) is not None


def _only_element(answer: Answer) -> Answer | None:
    """The element of a set that has one."""
    value = answer.value
    is_set = isinstance(value, Parts) and value.opening == "\\{"
    return value.items[0] if isinstance(value, Parts) and is_set and len(value.items) == 1 else None


def _sides(answer: Answer) -> list[Answer]:
    """The sides of a chain of equations, without the name it may begin with; none when it is no chain."""
    if not isinstance(answer.value, Formula) or not re.search(r"(?<![<>\\!])=", answer.text):
        return []
    texts = split(answer.text, "=")
    if len(texts) < 2:
        return []
    names = 1 if re.fullmatch(NAME, texts[0]) else 0
    return [read_answer(text) for text in texts[names:] if text]


def _same_parts(one: Parts, other: Parts) -> bool:
    """Tuples and intervals in order, sets and unions in any; a bare list is whatever the other one is."""
    if len(one.items) != len(other.items) or one.union != other.union:
        return False
    if one.ordered and other.ordered:
        # Two ends make an interval, whose brackets mean something; with more parts they are a matter of taste.
        if len(one.items) == 2 and (one.opening, one.closing) != (other.opening, other.closing):
            return False
        return _same_items(one.items, other.items)
    if {one.opening, other.opening} in ({"(", "\\{"}, {"[", "\\{"}):
        return False
    if one.ordered or other.ordered:
        return _same_items(one.items, other.items)
    return _same_in_some_order(one.items, other.items)


def _same_items(ones: Sequence[Answer], others: Sequence[Answer]) -> bool:
    return all(same_answer(a, b) for a, b in zip(ones, others, strict=True))


def _same_in_some_order(ones: Sequence[Answer], others: Sequence[Answer]) -> bool:
    """Whether the items can be paired off: a perfect matching, found by augmenting paths."""
    partners: dict[int, int] = {}
    equal = [[j for j, b in enumerate(others) if same_answer(a, b)] for a in ones]

    def place(i: int, tried: set[int]) -> bool:
        for j in equal[i]:
            if j not in tried:
                tried.add(j)
                if j not in partners or place(partners[j], tried):
                    partners[j] = i
                    return True
        return False

    return all(place(i, set()) for i in range(len(ones)))


def _same_matrix(one: object, other: object) -> bool:
    """Row by row; a tuple or a bare list is a row or a column."""
    left, right = _rows(one), _rows(other)
    if left is None or right is None:
        return False
    if not (isinstance(one, Matrix) and isinstance(other, Matrix)):
        left, right = _flat(left), _flat(right)
    if [len(row) for row in left] != [len(row) for row in right]:
        return False
    return all(_same_items(a, b) for a, b in zip(left, right, strict=True))


def _rows(value: object) -> Sequence[Sequence[Answer]] | None:
    if isinstance(value, Matrix):
        return value.rows
    if isinstance(value, Parts) and not value.union and value.opening != "\\{":
        return [value.items]
    return None


def _flat(rows: Sequence[Sequence[Answer]]) -> Sequence[Sequence[Answer]]:
    """A single column as a single row."""
    return [[row[0] for row in rows]] if all(len(row) == 1 for row in rows) else rows


def _same_formula(one: Answer, other: Answer) -> bool:
    if isinstance(one.value, Words) or isinstance(other.value, Words):
        return _same_letters(one, other)
    for number, formula in ((one.value, other), (other.value, one)):
        if isinstance(number, Number) and isinstance(formula.value, Formula):
            return _same_constant(number, formula.text)
    return same_expression(one.text, other.text)


def _same_letters(one: Answer, other: Answer) -> bool:
    """Words are never computed with, but `ab` may be a product: only single letters and products of them go further."""
    texts = (one.text, other.text)
    short = all(len(a.text) <= 3 or not isinstance(a.value, Words) for a in (one, other))
    mathematical = any(isinstance(a.value, Formula) for a in (one, other))
    return short and mathematical and same_expression(*texts)


def _same_constant(number: Number, text: str) -> bool:
    """A number against an expression without variables: the same value, or one that the decimal rounds."""
    value = constant_of(text)
    if value is None:
        return False
    exact = Fraction(str(value)) if len(str(value)) < 200 else None
    if exact is None:
        return False
    close = abs(exact - number.value) <= abs(number.value) * Fraction(1, 10**30)
    return close or rounds(number, exact) or (number.percent and exact == 100 * number.value)
