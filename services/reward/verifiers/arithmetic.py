"""Readers of Python-like formulas that compute and never execute: the syntax tree is walked, operator by operator."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]  # the library has no types

MAX_CHARACTERS = 5_000

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_FUNCTIONS: Mapping[str, Callable[..., sympy.Expr]] = {
    **{name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan")},
    **{name: getattr(sympy, name) for name in ("sinh", "cosh", "tanh", "exp", "log", "sqrt", "Abs", "factorial")},
    "ln": sympy.log,
    "abs": sympy.Abs,
}
_CONSTANTS = {"pi": sympy.pi, "E": sympy.E, "I": sympy.I, "oo": sympy.oo}


def read_formula(text: str, local_dict: Mapping[str, sympy.Expr] | None = None, **_: object) -> sympy.Expr:
    """A formula in Python's notation as sympy reads it, with the call of `sympy.parse_expr`.

    Raises:
        ValueError: it is longer than MAX_CHARACTERS or has anything but numbers, names, operators and known functions.
    """
    names = {**_CONSTANTS, **(local_dict or {})}

    def leaf(node: ast.expr) -> sympy.Expr:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return sympy.Integer(node.value) if isinstance(node.value, int) else sympy.Float(node.value)
        if isinstance(node, ast.Name):
            return names.get(node.id) or sympy.Symbol(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            return _FUNCTIONS[node.func.id](*(_walk(argument, leaf) for argument in node.args))
        raise ValueError(f"{type(node).__name__} has no place in a formula")

    return _walk(_tree(text), leaf)


def read_value(text: str) -> object:
    """A literal, or integer arithmetic, with the call of `eval`.

    Raises:
        ValueError: it is anything else.
    """
    tree = _tree(text)
    try:
        return ast.literal_eval(tree)
    except ValueError:
        return _walk(tree, _integer)


def _integer(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(f"{type(node).__name__} has no place in arithmetic")


def _tree(text: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"a formula of {len(text)} characters; at most {MAX_CHARACTERS} are read")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"no formula: {error}") from None


def _walk(node: ast.expr, leaf: Callable[[ast.expr], Any]) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_walk(node.left, leaf), _walk(node.right, leaf))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_walk(node.operand, leaf))
    return leaf(node)
