"""What strangers send is read in time and memory in proportion to its size: every pattern, cache, split and collection of ours.

A cache, a split without a limit and a collection that starts empty need a comment `# bounded: ...` above them that says
what bounds them. A pattern is run over what it is made to choke on; `# bounded: at most 253 characters` says what reaches it.
"""

import ast
import heapq
import importlib
import itertools
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("adsum", "discovery", "registry", "epp", "dispatcher")
METHODS = ("fullmatch", "match", "search", "findall", "finditer", "sub", "split")
COLLECTIONS = ("dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter")


@dataclass(frozen=True)
class Found:
    """`owner`: what it is called in its module, or the definition in which it stands; `note`: the comment above it."""

    path: str
    owner: str
    node: Any
    note: str

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno} {self.owner}"


@lru_cache(maxsize=1)
def found() -> dict[str, list[Found]]:
    """Patterns, caches, splits and collections of the installed packages."""
    kinds: dict[str, list[Found]] = {"pattern": [], "cache": [], "split": [], "collection": []}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "messages" not in path.parts:
                text = path.read_text()
                for kind, owner, node in _of_module(ast.parse(text)):
                    note = " ".join(text.split("\n")[max(node.lineno - 3, 0) : node.end_lineno + 1])
                    kinds[kind].append(Found(path.relative_to(ROOT).as_posix(), owner, node, note))
    return kinds


def _of_module(tree: ast.Module) -> Iterator[tuple[str, str, Any]]:
    for top in tree.body:
        owner = getattr(top, "name", "module")
        if isinstance(top, ast.Assign | ast.AnnAssign):
            target = top.targets[0] if isinstance(top, ast.Assign) else top.target
            owner = target.id if isinstance(target, ast.Name) else owner
            if top.value is not None and _is_empty(top.value):
                yield "collection", owner, top
        for node in ast.walk(top):
            if _called(node).rpartition(".")[2] in ("lru_cache", "cache") and not isinstance(
                node, ast.expr_context
            ):
                if isinstance(node, ast.Call) or _is_decorator(node, top):
                    yield "cache", owner, node
            elif isinstance(node, ast.Call) and _called(node) in {
                f"re.{one}" for one in (*METHODS, "compile")
            }:
                yield "pattern", owner, node
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("split", "rsplit", "splitlines")
            ):
                yield "split", owner, node


def _is_decorator(node: ast.AST, top: ast.AST) -> bool:
    return any(node in getattr(one, "decorator_list", ()) for one in ast.walk(top))


def _is_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        called = _called(value).rpartition(".")[2]
        return (called in COLLECTIONS and not value.args) or called.startswith("Weak")
    return not (getattr(value, "keys", None) or getattr(value, "elts", None)) and isinstance(
        value, ast.Dict | ast.List | ast.Set
    )


def _called(node: ast.AST) -> str:
    """`re.compile` of a call of it, or of itself."""
    node = node.func if isinstance(node, ast.Call) else node
    node = node.value if isinstance(node, ast.Subscript) else node
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


@pytest.mark.parametrize("kind", ["cache", "split", "collection"])
def test_what_bounds_it_is_said(kind: str) -> None:
    assert found()[kind]
    silent = [str(one) for one in found()[kind] if "# bounded: " not in one.note]
    assert not silent, f"say above each what bounds it, `# bounded: ...`: {silent}"


def test_every_cache_says_how_many_it_keeps() -> None:
    for cache in found()["cache"]:
        text = ast.unparse(cache.node)
        assert "None" not in text, f"{cache} keeps everything: {text}"
        assert _called(cache.node).rpartition(".")[2] == "lru_cache", f"{cache} keeps everything: {text}"


UNITS = (
    *("a", "1", "0", " ", "\t", '"', "'", "\\", "=", ",", ";", ":", "-", ".", "/", "{", "}", "$", "[", "@", "\n", "\r", "\0"),
    *("a=", 'a="', 'a="\\"', "a ", " a", "1.", "1:", "1s", "a.", "a-", "-a", "a,", '",', '"a', "://", "${a", "\\a"),
    *("; name=model", "name=", "boundary=", "[Errno 1", "\r\nconnection:", "content-disposition:", "wait=1,"),
    *('a="",', "a;a=", "255.", "1e"),
)  # fmt: skip
ENDS = ("", "\0", '"', "}", "\n!")
SECONDS = 0.25
"""Of processor time: 10,000 characters take a millisecond at most where each is looked at a few times, and seconds where
each is looked at again from each other one."""


def pattern_of(one: Found) -> re.Pattern[Any]:
    """The module's own pattern if it has a name, else compiled from the source text."""
    module = importlib.import_module(one.path.removesuffix(".py").replace("/", "."))
    named = getattr(module, one.owner, None)
    if isinstance(named, re.Pattern):
        return named
    return re.compile(eval(compile(ast.Expression(one.node.args[0]), one.path, "eval"), vars(module)))


def methods_of(one: Found) -> set[str]:
    method = _called(one.node).removeprefix("re.")
    if method != "compile":
        return {method}
    text = (ROOT / one.path).read_text()
    return {method for method in METHODS if f"{one.owner}.{method}" in text} or {"fullmatch"}


def beginnings(pattern: re.Pattern[Any]) -> list[str]:
    """What leads into each part of a pattern: the text that matches all before it, with and without what may be absent."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    found = {""}

    def follow(tokens: Iterable[Any], befores: set[str]) -> set[str]:
        for token, of in tokens:
            match token:
                case op.LITERAL:
                    befores = {before + chr(of) for before in befores}
                case op.NOT_LITERAL | op.ANY:
                    befores = {before + ("a" if of != ord("a") else "b") for before in befores}
                case op.IN:
                    befores = {before + _of_set(of) for before in befores}
                case op.MAX_REPEAT | op.MIN_REPEAT | op.POSSESSIVE_REPEAT:
                    once = follow(of[2], befores)
                    befores = once if of[0] else befores | once
                case op.SUBPATTERN:
                    befores = follow(of[3], befores)
                case op.ATOMIC_GROUP:
                    befores = follow(of, befores)
                case op.BRANCH:
                    befores = set().union(*(follow(branch, befores) for branch in of[1]))
            befores = set(sorted(befores, key=lambda before: (len(before), before))[:6])
            found.update(befores)
        return befores

    follow(_parser.parse(text, pattern.flags & ~re.UNICODE), {""})
    return sorted(found, key=lambda begin: (len(begin), begin))[:24]


def _of_set(items: list[Any]) -> str:
    """A character of a set such as `[a-z]` or `[^"]`."""
    inside = re.compile(_set_text(items))
    return next((one for one in 'a1 ="/:;,.-_{}[]\r\n\t' if inside.fullmatch(one)), "a")


def _set_text(items: list[Any]) -> str:
    text = ""
    for kind, of in items:
        match kind:
            case op.NEGATE:
                text += "^"
            case op.LITERAL:
                text += re.escape(chr(of))
            case op.RANGE:
                text += f"{re.escape(chr(of[0]))}-{re.escape(chr(of[1]))}"
            case op.CATEGORY:
                text += {"digit": r"\d", "space": r"\s", "word": r"\w"}.get(
                    str(of).rpartition("_")[2].lower(), "."
                )
    return f"[{text}]"


def slowest(pattern: re.Pattern[Any], methods: Iterable[str], longest: int) -> tuple[float, str]:
    """The longest time that one of the subjects took, and how it begins: of all, those are tried whole that are slow when short."""
    subjects = list(itertools.product(methods, beginnings(pattern), UNITS, ENDS))
    slow = heapq.nlargest(5, subjects, key=lambda subject: seconds(pattern, subject, longest // 8))
    return max((seconds(pattern, subject, longest), repr(subject)) for subject in slow)


def seconds(pattern: re.Pattern[Any], how: tuple[str, str, str, str], longest: int) -> float:
    method, begin, unit, end = how
    text = begin + (unit * (longest // len(unit) + 1))[:longest] + end
    subject: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
    started = time.thread_time()
    if method == "sub":
        pattern.sub(subject[:0], subject)
    elif method == "finditer":
        list(pattern.finditer(subject))
    else:
        getattr(pattern, method)(subject)
    return time.thread_time() - started


@pytest.mark.parametrize("package", PACKAGES)  # and not each pattern: finding them takes every process 2 s
def test_a_pattern_takes_time_in_proportion(package: str) -> None:
    for one in found()["pattern"]:
        if not one.path.startswith(f"{package}/"):
            continue
        reaches = re.search(r"# bounded: at most ([\d,]+) characters", one.note)
        longest = int(reaches[1].replace(",", "")) if reaches else 10_000
        worst, what = slowest(pattern_of(one), methods_of(one), longest)
        assert worst < SECONDS, f"{one}: {what} took {worst:.1f} s; make its quantifiers possessive"
