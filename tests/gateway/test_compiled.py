"""The compiled path of a request: what its modules keep to, when it is found, and that the tests hold on it as well."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import gateway.ids  # noqa: F401  # one of them
from gateway import compiled
from gateway.compiled import MODULES, ROOT, source_of
from gateway.compiling import CannotCompile, compile_path

AGAIN = (
    "tests/gateway/test_sse.py tests/gateway/upstream tests/gateway/routing tests/gateway/serve/test_protocol.py"
    " tests/gateway/api/test_streams.py tests/gateway/api/test_leaving.py tests/gateway/api/test_fallbacks.py"
    " tests/gateway/api/test_refusals.py tests/gateway/admission/test_admission.py tests/gateway/admission/test_answers.py"
    " tests/gateway/admission/test_store.py tests/gateway/admission/test_shared.py"
    " tests/billing/test_plans.py tests/gateway/metering/test_bill.py tests/e2e/test_founding_case.py"
)
"""What runs a second time, compiled: the protocols, streams and their endings, failures and fallbacks, money from end to end."""


def tree_of(module: str) -> ast.Module:
    return ast.parse(source_of(module).read_text())


def names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


@pytest.mark.parametrize("module", MODULES)
def test_no_finally_awaits(module: str) -> None:
    """mypyc raises an exception anew that a caller was handling, when a coroutine that it calls awaits in a `finally`."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Try):
            awaiting = [
                each.lineno
                for last in node.finalbody
                for each in ast.walk(last)
                if isinstance(each, (ast.Await, ast.AsyncWith, ast.AsyncFor))
            ]
            assert not awaiting, f"{module}: awaits in a finally, line {awaiting}"


@pytest.mark.parametrize("module", MODULES)
def test_no_class_is_made_from_its_annotations(module: str) -> None:
    """msgspec and dataclasses read a class's annotations, and Struct its keywords: a compiled class shows them neither."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ClassDef):
            assert not node.keywords, f"{module}.{node.name} has keywords"
            assert "Struct" not in {name for base in node.bases for name in names(base)}, f"{module}.{node.name}"
            assert "dataclass" not in {name for each in node.decorator_list for name in names(each)}, node.name


OBJECTS = frozenset(
    """
    snapshot is not self._known_in; type(store) is MemoryStore; self._standing_in is not snapshot
    standing.identity is not identity; standing.snapshot is not snapshot; oldest is suspect
    options.get('connection_class') is not SSLConnection; books is not self._books; opened is first
    token_class is TokenClass.REQUEST; row.kind is RateKind.REFERENCE; attempts[at].usage is usage; each is IDENTITY
    headers is not self._default_from; current is not self._parsing; replacement is not event
    """.strip()
    .replace("\n    ", "; ")
    .split("; ")
)
"""What `is` compares in the compiled modules beside None: objects each, and no numbers, texts or tuples."""


@pytest.mark.parametrize("module", MODULES)
def test_only_objects_are_compared_by_identity(module: str) -> None:
    """Numbers and tuples are no objects when compiled: two that are the same are not `is` each other."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            sides = (node.left, *node.comparators)
            if not any(isinstance(each, ast.Constant) and each.value is None for each in sides):
                assert ast.unparse(node) in OBJECTS, (
                    f"{module}, line {node.lineno}: if both are objects, say so in OBJECTS"
                )


NATIVE = frozenset(
    node.name for module in MODULES for node in ast.walk(tree_of(module)) if isinstance(node, ast.ClassDef)
)


@pytest.mark.parametrize("module", MODULES)
def test_no_name_is_given_to_errors_of_a_compiled_class_and_to_others(module: str) -> None:
    """A name has one type in a function: the second `except .. as error` would raise TypeError for what it was to catch."""
    for function in ast.walk(tree_of(module)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            caught: dict[str, set[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    caught.setdefault(node.name, set()).add(ast.unparse(node.type))
            for name, types in caught.items():
                native = NATIVE & {each for of in types for each in names(ast.parse(of))}
                assert len(types) == 1 or not native, f"{module}.{function.name}: {name} is {sorted(types)}"


@pytest.mark.parametrize("module", MODULES)
def test_what_a_subclass_may_replace_is_marked_so(module: str) -> None:
    """A plain attribute of a compiled class has a fixed place that a subclass's own of the same name does not change."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ClassDef) and "mypyc_attr" in {n for each in node.decorator_list for n in names(each)}:
            for each in node.body:
                assert not isinstance(each, ast.Assign), f"{module}.{node.name}: line {each.lineno}"
                if isinstance(each, ast.AnnAssign):
                    assert "ClassVar" in set(names(each.annotation)), f"{module}.{node.name}: line {each.lineno}"


def test_a_changed_source_is_not_what_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("gateway", "billing"):
        (tmp_path / package).mkdir()
    source = tmp_path / "billing" / "money.py"
    source.write_text("NANO = 1\n")
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    before = compiled.digest()
    assert compiled.digest() == before
    source.write_text("NANO = 2\n")
    assert compiled.digest() != before
    source.write_text("NANO = 1\n")
    source.rename(tmp_path / "gateway" / "money.py")
    assert compiled.digest() != before


def test_what_is_imported_already_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Half of it compiled and half not would share no types."""
    monkeypatch.setenv("METERGATE_COMPILED", "on")
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path)
    made = compiled.folder(compiled.digest()) / f"gateway/ids{EXTENSION_SUFFIXES[0]}"
    made.parent.mkdir(parents=True)
    made.touch()
    monkeypatch.setattr(sys, "meta_path", [])
    assert "gateway.ids" in sys.modules
    compiled.activate()
    assert not compiled.is_active()
    monkeypatch.setattr(sys, "modules", {})
    compiled.activate()
    assert compiled.is_active()


def test_sources_are_read_when_the_first_compiled_module_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def digest() -> str:
        asked.append("digest")
        return "none"

    monkeypatch.setenv("METERGATE_COMPILED", "on")
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path)
    monkeypatch.setattr(compiled, "digest", digest)
    monkeypatch.setattr(sys, "modules", {})
    monkeypatch.setattr(sys, "meta_path", [])
    compiled.activate()
    (finder,) = sys.meta_path
    assert finder.find_spec("gateway.settings", None) is None and asked == []
    assert finder.find_spec("gateway.ids", None) is None and asked == ["digest"]
    assert finder.find_spec("gateway.sse", None) is None and asked == ["digest"]


def test_without_a_compiler_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gateway.compiling.folder", lambda of: tmp_path / "__compiled__" / of)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CannotCompile, match="gcc"):
        compile_path()
    assert not (tmp_path / "__compiled__").exists()


@pytest.mark.timeout(900)
def test_the_tests_of_the_path_hold_on_it_compiled() -> None:
    compile_path()
    environment = {**os.environ, "METERGATE_COMPILED": "on"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not interpreted", *AGAIN.split()]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
