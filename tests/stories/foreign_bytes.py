"""Finds in the sources what untrusted input could make slow or large: patterns, splits, caches, module-level collections."""

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("adsum", "discovery", "registry", "epp", "dispatcher")
METHODS = ("fullmatch", "match", "search", "findall", "finditer", "sub", "split")
_COLLECTIONS = ("dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter")


@dataclass(frozen=True)
class Found:
    """`name`: `adsum/units.py _PART`, the file and what it is called there, or the function in which it is written."""

    name: str
    line: int
    node: ast.AST
    methods: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def sources() -> Sequence[tuple[str, ast.Module]]:
    """Returns each source file by its path."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "messages" not in path.parts:
                found.append((path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())))
    return found


@lru_cache(maxsize=1)
def patterns() -> dict[str, Found]:
    """Yields each regular expression and the methods that its file calls on it."""
    found: dict[str, Found] = {}
    for path, tree in sources():
        used = _methods(tree)
        for owner, call in _calls(tree):
            if _called(call) in {f"re.{method}" for method in (*METHODS, "compile")}:
                method = _called(call).removeprefix("re.")
                methods = used.get(owner, ()) if method == "compile" else (method,)
                name = _free(f"{path} {owner}", found)
                found[name] = Found(name, call.lineno, call, methods or ("fullmatch",))
    return found


def pattern_of(found: Found) -> re.Pattern[Any]:
    """Returns the compiled pattern: the module's own if it has a name, else one compiled from the source text."""
    path, _, name = found.name.partition(" ")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    named = getattr(module, name, None)
    if isinstance(named, re.Pattern):
        return named
    assert isinstance(found.node, ast.Call)
    return re.compile(eval(compile(ast.Expression(found.node.args[0]), path, "eval"), vars(module)))


def caches() -> dict[str, Found]:
    found: dict[str, Found] = {}
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    if _called(decorator).rpartition(".")[2] in ("lru_cache", "cache"):
                        found[f"{path} {node.name}"] = Found(f"{path} {node.name}", node.lineno, decorator)
        for owner, call in _calls(tree):
            if isinstance(call.func, ast.Call) and _called(call.func).rpartition(".")[2] == "lru_cache":
                found[f"{path} {owner}"] = Found(f"{path} {owner}", call.lineno, call.func)
    return found


def collections() -> dict[str, Found]:
    """Yields each module-level collection that starts empty: later entries come from elsewhere."""
    found: dict[str, Found] = {}
    for path, tree in sources():
        for node in tree.body:
            if (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and node.value is not None
                and _is_empty(node.value)
            ):
                name = f"{path} {_target(node)}"
                found[name] = Found(name, node.lineno, node)
    return found


def splits() -> dict[str, Found]:
    """Yields each call that splits a string into as many parts as the input has separators."""
    found: dict[str, Found] = {}
    for path, tree in sources():
        for owner, call in _calls(tree):
            if _called(call).startswith("re.") or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr in ("split", "rsplit", "splitlines"):
                name = _free(f"{path} {owner}", found)
                found[name] = Found(name, call.lineno, call)
    return found


def _is_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if isinstance(value, ast.Call):
        called = _called(value).rpartition(".")[2]
        return (called in _COLLECTIONS and not value.args) or called.startswith("Weak")
    return False


def _methods(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    used: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, set()).add(node.attr)
    return {name: tuple(sorted(methods)) for name, methods in used.items()}


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Each call, and the name that it is given in its module, or in whose body it stands."""
    for top in tree.body:
        if isinstance(top, ast.Assign | ast.AnnAssign):
            owner = _target(top)
        else:
            owner = getattr(top, "name", "module")
        for node in ast.walk(top):
            if isinstance(node, ast.Call):
                yield owner, node


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else "module"


def _called(node: ast.expr) -> str:
    """`re.compile` of a call of it, or of itself."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _free(name: str, taken: dict[str, Found]) -> str:
    names = (name, *(f"{name} {number}" for number in range(2, 100)))
    return next(one for one in names if one not in taken)
