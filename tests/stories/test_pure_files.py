"""Every file that calls itself pure imports no I/O, no clock and no client."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    "aiohttp", "anyio", "asyncio", "grpc", "kubernetes_asyncio", "redis", "socket", "subprocess", "threading", "time",
}  # fmt: skip


_PURE = re.compile(r"\bpure\b", re.IGNORECASE)


def _pure_files() -> list[Path]:
    return [
        path
        for package in ("adsum", "discovery", "registry", "epp", "dispatcher")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "__init__.py"
        and _PURE.search(text := path.read_text())
        and _PURE.search(ast.get_docstring(ast.parse(text)) or "")
    ]


def test_a_file_that_calls_itself_pure_imports_nothing_that_waits() -> None:
    pure = _pure_files()  # here, and not to name the tests: reading all files takes every process a second
    assert pure
    for path in pure:
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
        assert not imported & FORBIDDEN, path
