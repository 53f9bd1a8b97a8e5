"""Importing a package and `--help` of a program load no module that they do not need."""

import ast
import importlib
import json
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAZY = ["discovery", "registry"]
HEAVY = {
    "aiohttp", "anyio", "asyncio", "cryptography", "google", "grpc", "hpack", "kubernetes_asyncio", "msgspec",
    "multidict", "numpy", "prometheus_client", "pydantic", "pydantic_core", "redis", "tenacity", "watchfiles",
    "xxhash", "yaml", "yarl",
}  # fmt: skip
"""Each costs 5 to 200 ms."""


def heavy_imports(statements: str) -> set[str]:
    """Returns the heavy modules that a fresh interpreter has imported after it ran these statements."""
    report = "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)"
    program = f"import json, sys\ntry:\n    {statements}\nexcept SystemExit as end:\n    assert not end.code\n{report}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return HEAVY.intersection(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("package", ["adsum", "discovery", "registry", "epp", "dispatcher"])
def test_importing_a_package_imports_nothing_heavy(package: str) -> None:
    assert heavy_imports(f"import {package}") == set()


def test_importing_discovery_imports_no_source() -> None:
    """However fast it is: `open` imports the one that its URL names."""
    sources = "[name for name in sys.modules if 'filesystem' in name or 'kubernetes' in name]"
    done = subprocess.run(
        [sys.executable, "-c", f"import discovery, sys; print({sources})"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "adsum", "adsum discovery", "adsum registry", "adsum epp", "adsum dispatcher",
        "discovery", "discovery list", "discovery watch", "discovery explain", "discovery check", "registry", "registry pd-sidecar",
        "epp", "epp validate", "epp envoy-config",
        "dispatcher", "dispatcher submit", "dispatcher status", "dispatcher cancel", "dispatcher dead-letters",
    ],
)  # fmt: skip
def test_help_imports_nothing_heavy(command: str) -> None:
    program, *given = command.split()
    run = f"sys.argv[1:] = {[*given, '--help']}; import runpy; runpy.run_module('{program}', run_name='__main__')"
    assert heavy_imports(run) == set()


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_and_python_find_the_same_names_in_the_same_modules(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    assert len(blocks) == 1
    imports = [node for node in blocks[0].body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(blocks[0].body)
    seen: dict[str, tuple[str, ...]] = {}
    for node in imports:  # `as` makes a name public
        seen[str(node.module)] = (*seen.get(str(node.module), ()), *[str(name.asname) for name in node.names])
    assert seen == module._EXPORTS
    assert sorted(name for names in seen.values() for name in names) == module.__all__


@pytest.mark.parametrize("package", LAZY)
def test_every_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for home, names in module._EXPORTS.items():
        for name in names:
            assert getattr(module, name) is getattr(importlib.import_module(home), name)
    assert set(module.__all__) <= set(dir(module))
    everything: dict[str, object] = {}
    exec(f"from {package} import *", everything)
    assert set(module.__all__) <= everything.keys()


@pytest.mark.parametrize("package", LAZY)
def test_help_shows_what_is_lazy(package: str) -> None:
    text = pydoc.render_doc(importlib.import_module(package), renderer=pydoc.plaintext)  # type: ignore[attr-defined]  # documented, and not in the stubs
    for name in importlib.import_module(package).__all__:
        assert name in text


@pytest.mark.parametrize("package", LAZY)
def test_a_name_that_is_none_is_said_as_of_any_module(package: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        getattr(module, "nothing")  # noqa: B009
    assert not hasattr(module, "__wrapped__")


def test_a_module_of_a_lazy_package_is_there_once_it_is_named() -> None:
    statements = "import discovery; assert discovery.opening.SOURCES and discovery.metadata.client"
    assert "msgspec" in heavy_imports(statements)
