"""Fills the places that a page leaves for what is generated from the code: `<!-- generated: NAME -->`.

mkdocstrings fills those for docstrings, `::: NAME`.
"""

import re
from collections.abc import Callable
from typing import Final

from release.site.command_line import programs
from release.site.modules import modules
from release.site.schema import dispatcher_file, picker_file

_PLACE: Final = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
_EMPTY: Final = re.compile(r"^The documentation site fills this page .*\n\n", re.MULTILINE)
"""The line that tells readers of the source why there is nothing."""
_GENERATORS: Final[dict[str, Callable[[], str]]] = {
    "programs": programs,
    "modules": modules,
    "picker-file": picker_file,
    "dispatcher-file": dispatcher_file,
}


def with_generated(markdown: str) -> str:
    """Raises KeyError for a name that nothing generates."""
    return _PLACE.sub(lambda place: _GENERATORS[place[1]](), _EMPTY.sub("", markdown))
