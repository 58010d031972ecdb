"""The house rules that no off-the-shelf linter knows, as functions from one file's source to its findings.

Each rule is a plain AST walk. `check_file` decides by path which of them a file is under:

- billing (and the migrations): no float, no NUMERIC or FLOAT column, no naive datetime, no division that yields a float
- the product: no unfinished work left behind
- everywhere: no path of the machine it was written on
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

FLOATING_COLUMNS = frozenset(
    {"Numeric", "NUMERIC", "Float", "FLOAT", "REAL", "Double", "DOUBLE", "DOUBLE_PRECISION", "DECIMAL"}
)
NAIVE_CALLS = frozenset({"utcnow", "utcfromtimestamp"})
FLOAT_MODULES = frozenset({"math", "random", "statistics", "cmath"})
EXACT_FROM_MATH = frozenset({"gcd", "lcm", "isqrt", "comb", "factorial"})
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|opt|work|home/\w+|Users/\w+)/[\w.]")
UNFINISHED = re.compile(r"\b(?:XXX|FIX" r"ME|TO" r"DO)\b|raise NotImplemented" r"Error\b")


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def check_file(path: str, source: str) -> list[Finding]:
    """All findings in `source`, whose path is relative to the repository root with forward slashes."""
    findings = list(machine_paths(path, source))
    parts = PurePosixPath(path).parts
    if not path.endswith(".py"):
        return findings
    tree = ast.parse(source, filename=path)
    if parts[0] != "tests":
        findings.extend(unfinished_work(path, source))
    if parts[0] in {"billing", "migrations"}:
        findings.extend(exact_money(path, tree))
    return findings


def exact_money(path: str, tree: ast.AST) -> Iterator[Finding]:
    """No float, no floating column, no naive datetime: what `billing` promises an auditor."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        match node:
            case ast.Constant(value=float()):
                yield Finding(path, line, "a float literal; money and counts are integers")
            case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
                if not _joins_paths(node):
                    yield Finding(path, line, "true division yields a float; use divide_half_even or //")
            case ast.Name(id="float"):
                yield Finding(path, line, "float; money and counts are integers")
            case ast.BinOp(op=ast.Pow(), right=ast.UnaryOp(op=ast.USub(), operand=ast.Constant())):
                yield Finding(path, line, "a negative power yields a float")
            case ast.Attribute(attr=attr) if attr in FLOATING_COLUMNS:
                yield Finding(path, line, f"a {attr} column; amounts are BIGINT nano")
            case ast.ImportFrom(names=names, module=module):
                yield from _imports(path, line, module, names)
            case ast.Attribute(attr=attr) if attr in NAIVE_CALLS:
                yield Finding(path, line, f"{attr} makes a naive datetime; use integer microseconds, UTC")
            case ast.Call(func=ast.Attribute(attr="now"), args=[], keywords=[]):
                yield Finding(path, line, "now() without a time zone makes a naive datetime")
            case ast.Call(func=ast.Attribute(attr="fromtimestamp"), args=[_], keywords=[]):
                yield Finding(path, line, "fromtimestamp() without a time zone makes a naive datetime")
            case ast.Call(func=ast.Name(id="datetime"), args=args, keywords=keywords):
                if len(args) < 8 and not any(k.arg in {"tzinfo", None} for k in keywords):
                    yield Finding(path, line, "datetime(...) without tzinfo is naive")
            case _:
                pass


def _imports(path: str, line: int, module: str | None, names: list[ast.alias]) -> Iterator[Finding]:
    for alias in names:
        if alias.name in FLOATING_COLUMNS:
            yield Finding(path, line, f"a {alias.name} column; amounts are BIGINT nano")
        if module in FLOAT_MODULES and alias.name not in EXACT_FROM_MATH:
            yield Finding(path, line, f"{module}.{alias.name} computes in floats")


def _joins_paths(node: ast.AST) -> bool:
    """`folder / "name"`: a division by a string literal joins paths."""
    return isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and isinstance(node.right.value, str)


def unfinished_work(path: str, source: str) -> Iterator[Finding]:
    for number, text in enumerate(source.splitlines(), start=1):
        if UNFINISHED.search(text):
            yield Finding(path, number, "unfinished work; finish it or file it, and say what happens until then")


def machine_paths(path: str, source: str) -> Iterator[Finding]:
    for number, text in enumerate(source.splitlines(), start=1):
        if MACHINE_PATH.search(text):
            yield Finding(path, number, "a path of one machine; derive it from the repository or a setting")


@dataclass(frozen=True, slots=True)
class Length:
    lines: int
    where: str


def long_functions(path: str, source: str, limit: int) -> Iterator[Length]:
    """Functions of more than `limit` lines, decorators not counted."""
    for node in ast.walk(ast.parse(source, filename=path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > limit:
                yield Length(lines, f"{path}:{node.lineno} {node.name}")
