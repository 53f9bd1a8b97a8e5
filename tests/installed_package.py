"""Installs a package without pip: its module, and the metadata that pip would write beside it."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    place: Path,
    package: str,
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    version: str = "1.0",
    module: str | None = None,
) -> Path:
    """`entry_points` by group and name; `module`: the source of the module, whose name is that of the package."""
    place.mkdir(parents=True, exist_ok=True)
    information = place / f"{package}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = (
        line
        for group, points in entry_points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    )
    (information / "entry_points.txt").write_text("\n".join(lines))
    if module is not None:
        (place / f"{package}.py").write_text(module)
    return place


def see(monkeypatch: pytest.MonkeyPatch, *places: Path) -> None:
    """Adds the folder to the import path until the end of the test, then removes the modules that it added."""
    for place in places:
        monkeypatch.syspath_prepend(str(place))
        for module in place.glob("*.py"):
            monkeypatch.delitem(sys.modules, module.stem, raising=False)
