"""What starts and runs the picker names no plugin: a plugin declares itself where it stands."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

EPP = Path(__file__).parents[2] / "epp"
# extension.py lists what others may import
MODULES = sorted(path for path in EPP.glob("*.py") if path.name != "extension.py")

NO_PLUGINS = {
    "FairnessPolicy",  # a Protocol
    "InFlightEviction",  # what all eviction policies work on
    "PageTls",  # a section of the configuration
}
"""What stands beside plugins and is none."""


def imported(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


def plugin_modules() -> set[str]:
    """Those that the catalogue lists, and the others of the folder of a plugin that has one of its own."""
    declared = {
        module for module, _ in imported(EPP / "config" / "catalogue.py") if module.startswith("epp.")
    }
    declared.discard("epp.plugins.declaration")
    folders = {module.rpartition(".")[0] for module in declared if module.count(".") == 3}
    return declared | {f"{folder}.{path.stem}" for folder in folders for path in _files(folder)}


def _files(folder: str) -> Iterator[Path]:
    return EPP.joinpath(*folder.split(".")[1:]).glob("*.py")


def test_the_modules_of_plugins_are_found() -> None:
    assert {"epp.flow_control.program_aware", "epp.scheduling.prefix.producer"} <= plugin_modules()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_generic_module_names_no_plugin(path: Path) -> None:
    plugins = plugin_modules()
    named = {name for module, name in imported(path) if module in plugins} - NO_PLUGINS
    assert not named, "declare it on the plugin, or ask for a Protocol of epp/scheduling/plugin.py"
