"""The list of all modules, from the first paragraph of each docstring."""

import ast
from pathlib import Path
from typing import Final

from release.site.outside_pages import ROOT

_PACKAGES: Final = ("adsum", "discovery", "registry", "epp", "dispatcher", "examples", "release")


def modules() -> str:
    """Markdown: a section for each package, a table for each folder."""
    parts = []
    for package in _PACKAGES:
        for folder in sorted({path.parent for path in (ROOT / package).rglob("__init__.py")}):
            name = folder.relative_to(ROOT).as_posix()
            parts += [f"{'##' if name == package else '###'} {name}", _about(folder / "__init__.py")]
            files = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
            if files and folder.name != "messages":
                rows = [f"| `{path.name}` | {_about(path)} |" for path in files]
                parts.append("\n".join(["| module | what it is |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _about(path: Path) -> str:
    paragraph = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")
