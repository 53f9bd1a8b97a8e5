"""What starts and runs the picker names no plugin: a plugin declares itself where it stands."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from epp.config.catalogue import MODULES

EPP = Path(__file__).parents[2] / "epp"
NAMING = {
    "extension": "what others may import",
    "kv_events.feed": "follows what precise-prefix-cache-producer reads",
    "kv_events.time_slices": "does the steps of its batches",
    "kv_events.subscriber": "applies batches to its index",
    "kv_events.subscriptions": "opens the streams of its batches",
    "kv_events.tokens": "asks for the tokens of its prompts",
    "peers.caches": "hands over what it knows",
}
"""The generic modules that name plugins, and why."""

NO_PLUGINS = {
    "FairnessPolicy",
    "OrderingPolicy",
    "UsageLimitPolicy",
    "SaturationDetector",
    "StalenessAware",
    "DispatchDetector",
    "InFlightEviction",  # what all eviction policies work on
    "SATURATED",  # the reason of a refusal
}
"""Protocols, and what else stands beside plugins and is none."""


def imported(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


@cache
def plugin_modules() -> set[str]:
    """Those of the catalogue, and the others of the folder of a plugin that has one of its own."""
    declared = {module.__name__ for module in MODULES}
    # types without code of their own, whose parameters other parts of the picker read
    declared.remove("epp.config.data_layer")
    folders = {module.rpartition(".")[0] for module in declared if module.count(".") == 3}
    return declared | {f"{folder}.{path.stem}" for folder in folders for path in _files(folder)}


def _files(folder: str) -> Iterator[Path]:
    return EPP.joinpath(*folder.split(".")[1:]).glob("*.py")


def test_the_modules_of_plugins_are_found() -> None:
    assert {"epp.flow_control.program_aware", "epp.scheduling.prefix.producer"} <= plugin_modules()


def named_plugins(path: Path) -> set[str]:
    names = imported(path)
    return {name for module, name in names if {module, f"{module}.{name}"} & plugin_modules()} - NO_PLUGINS


def generic_modules() -> dict[str, Path]:
    found = {".".join(path.relative_to(EPP).with_suffix("").parts): path for path in EPP.rglob("*.py")}
    return {name: path for name, path in found.items() if f"epp.{name}" not in plugin_modules()}


def test_no_generic_module_names_a_plugin() -> None:
    found = {name: named_plugins(path) for name, path in generic_modules().items() if name not in NAMING}
    advice = "declare it on the plugin, or ask for a Protocol of epp/scheduling/plugin.py"
    assert not {name: plugins for name, plugins in found.items() if plugins}, advice


@pytest.mark.parametrize("name", NAMING)
def test_an_exception_names_plugins(name: str) -> None:
    assert named_plugins(generic_modules()[name]), "it names none any more: take it off the list"
