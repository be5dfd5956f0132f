"""Expressions: Math-Verify's grammar and comparison, without its timeouts and with bounds of our own.

Only the grammar reads text here (`latex2sympy`); sympy's own readers of strings evaluate them as Python and are never
called. What could take ages is refused before it is computed: then only an answer of the same text is equal.
"""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import sympy  # type: ignore[import-untyped]  # the library has no types
from latex2sympy2_extended.latex2sympy2 import (  # type: ignore[import-untyped]  # the library has no types
    ConversionConfig,
    NormalizationConfig,
    _Latex2Sympy,
    normalize_latex,
)
from math_verify.grader import should_treat_as_complex, verify  # type: ignore[import-untyped]  # the library has no types

from services.reward.verifiers.cleaning import MAX_DEPTH, nesting
from services.reward.verifiers.evaluation import nothing_evaluated

MAX_LENGTH = 400
"""Characters of an expression that is read as one."""
MAX_NODES = 400
MAX_BITS = 50_000
"""Size of the largest number that may come out of a power or a factorial."""
DIGITS = 40

_NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_UNEVALUATED = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)

# It warns at the first call that its timeouts are off; here the pool of killable processes is the limit.
logging.getLogger("math_verify").setLevel(logging.ERROR)


class UnreadableError(ValueError):
    """The text is no expression, or one whose value is out of bounds."""


Expression: TypeAlias = sympy.Basic | sympy.MatrixBase


class _Grammar(_Latex2Sympy):  # type: ignore[misc]  # the library is not typed
    """The library's grammar, but numbers are exact: its own reader of digits has sympy evaluate them as Python."""

    def parse_number(self, text: str) -> sympy.Rational:
        value = Fraction(text.replace(",", ""))
        return sympy.Rational(value.numerator, value.denominator)


@lru_cache(maxsize=512)
def read_expression(text: str) -> Expression:
    """The expression that LaTeX means, not evaluated.

    Raises:
        UnreadableError: the grammar does not accept it, or it is too long, too deep or too large.
    """
    if len(text) > MAX_LENGTH or nesting(text) > MAX_DEPTH:
        raise UnreadableError(f"an expression of {len(text)} characters, {nesting(text)} brackets deep")
    latex = normalize_latex(text, _NORMAL)
    try:
        with nothing_evaluated():
            found = _Grammar(is_real=not should_treat_as_complex(latex), config=_CONVERSION).parse(latex)
    except MemoryError:
        raise
    except (
        Exception,
        RecursionError,
    ) as error:  # the grammar and sympy raise anything at all for text that is no maths
        raise UnreadableError(f"not an expression: {type(error).__name__}") from None
    if not isinstance(found, sympy.Basic | sympy.MatrixBase):
        raise UnreadableError(f"read as {type(found).__name__}")
    _check_size(found)
    return found


def same_expression(one: str, other: str) -> bool:
    """Whether two texts mean equal expressions. Symmetric: the texts are compared in the order of their characters."""
    first, second = sorted((one, other))
    try:
        left, right = read_expression(first), read_expression(second)
    except UnreadableError:
        return False
    left_value, right_value = _constant(left), _constant(right)
    if left_value is not None and right_value is not None:
        return _close(left_value, right_value)
    with nothing_evaluated():
        return bool(verify(left, right, timeout_seconds=None, allow_set_relation_comp=True))


def constant_of(text: str) -> sympy.Expr | None:
    """The value of a real expression without variables, to DIGITS digits; None for anything else."""
    try:
        value = _constant(read_expression(text))
    except UnreadableError:
        return None
    return value if value is not None and value.is_real else None


def _constant(expression: Expression) -> sympy.Expr | None:
    if not isinstance(expression, sympy.Expr) or expression.free_symbols or expression.has(sympy.MatrixSymbol):
        return None
    try:
        value = expression.evalf(DIGITS)
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        return None
    parts = value.as_real_imag() if isinstance(value, sympy.Expr) else ()
    return value if parts and all(isinstance(part, sympy.Number) and part.is_finite for part in parts) else None


def _close(one: sympy.Expr, other: sympy.Expr) -> bool:
    """Equal to thirty digits, in the real and in the imaginary part."""
    difference, size = abs(one - other), max(abs(one), abs(other), sympy.Float(1e-20))
    return bool(difference <= size * sympy.Float("1e-30"))


def _check_size(expression: Expression) -> None:
    for nodes, node in enumerate(sympy.preorder_traversal(expression)):
        if nodes == MAX_NODES:
            raise UnreadableError(f"an expression of more than {MAX_NODES} parts")
        if isinstance(node, _UNEVALUATED):
            raise UnreadableError(
                f"{type(node).__name__.lower()}s are not evaluated: they are the task, not its answer"
            )
        if isinstance(node, sympy.Pow | sympy.factorial | sympy.binomial) and _bits(node) > MAX_BITS:
            raise UnreadableError(f"a number of more than {MAX_BITS} bits")


def _bits(expression: sympy.Basic) -> float:
    """About log2 of the absolute value: an upper bound where it matters, and 0 for what has no size, as symbols."""
    if isinstance(expression, sympy.Number):
        return _bits_of_number(expression)
    if isinstance(expression, sympy.Pow):
        return _bits(expression.base) * _magnitude(expression.exp)
    if isinstance(expression, sympy.factorial):
        count = _magnitude(expression.args[0])
        return count * math.log2(count) if 2 < count < math.inf else count
    if isinstance(expression, sympy.binomial):
        return _magnitude(expression.args[0])
    if isinstance(expression, sympy.Mul):
        return sum(map(_bits, expression.args))
    return max((_bits(part) for part in expression.args), default=0.0) + len(expression.args)


def _bits_of_number(number: sympy.Number) -> float:
    if not number.is_finite or number.is_zero:
        return 0.0
    if isinstance(number, sympy.Rational):
        return float(max(abs(int(number.p)).bit_length(), int(number.q).bit_length()))
    return abs(float(sympy.log(abs(number), 2).evalf(5)))


def _magnitude(expression: sympy.Basic) -> float:
    """An upper bound of the absolute value, infinite when that is beyond all use."""
    bits = _bits(expression)
    return math.inf if bits > 64 else 2.0**bits
