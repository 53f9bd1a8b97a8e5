"""Pages of the repository that live outside docs/, their place on the site, and the links between them and docs/."""

import posixpath
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
OUTSIDE: Final = {
    ROOT / "ARCHITECTURE.md": "explanation/architecture.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "benchmarks" / "README.md": "explanation/benchmarks.md",
    ROOT / "benchmarks" / "picking" / "README.md": "explanation/benchmarks-picking.md",
    ROOT / "benchmarks" / "routing" / "README.md": "explanation/benchmarks-routing.md",
    ROOT / "README.md": "readme.md",
}
"""Where the site has each, as a path in docs/."""
_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def with_site_links(markdown: str, place: str) -> str:
    """`markdown` with the links of the repository turned into those of the site. `place`: the page's path in docs/."""
    sources = {name: path for path, name in OUTSIDE.items()}
    folder = sources.get(place, DOCS / place).parent

    def moved(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target in OUTSIDE:
            name = OUTSIDE[target]
        elif target.is_relative_to(DOCS):
            name = target.relative_to(DOCS).as_posix()
        else:
            return link[1]
        return posixpath.relpath(name, posixpath.dirname(place))

    return _LINK.sub(moved, markdown)
