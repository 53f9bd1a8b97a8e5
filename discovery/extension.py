"""What an installed package imports to add a source to discovery: docs/extending.md walks through one.

It declares entry points in the group `adsum.sources`. The name of each is a URL scheme, in lower-case letters, the object
it refers to is an `OpenSource`.
"""

from typing import Final, Protocol

from discovery.instance import Instance, InstanceStatus
from discovery.source import Candidate, ComponentKey, Report, Snapshot, Source
from runtime.entry_points import PluginGroup, in_one_line

__all__ = [
    "Candidate",
    "ComponentKey",
    "Instance",
    "InstanceStatus",
    "OpenSource",
    "Report",
    "Snapshot",
    "Source",
]

SOURCES: Final = PluginGroup("adsum.sources", "URL scheme", ("file", "kubernetes", "memory", "static"))

_MEMBERS: Final = ("run", "suspect", "explain", "components", "aclose")


class OpenSource(Protocol):
    """From a URL to a source."""

    def __call__(self, url: str, /) -> Source:
        """Raises ValueError for a URL that is not sound. Connects to nothing and reads nothing: that is for `Source.run`."""


def open_installed(url: str, scheme: str) -> Source | None:
    """The source of an installed package; None where no package declares that scheme. Raises ValueError."""
    found = SOURCES.load(scheme)
    if found is None:
        return None
    if not callable(found.value):
        said = f"is a {type(found.value).__name__}; expected a discovery.extension.OpenSource, which takes a URL"
        raise SOURCES.unusable(scheme, found.package, said)
    try:
        source: Source = found.value(url)
    except ValueError:
        raise
    except Exception as error:
        raise SOURCES.unusable(scheme, found.package, f"cannot be opened: {in_one_line(error)}") from error
    if missing := [member for member in _MEMBERS if not hasattr(source, member)]:
        said = f"opened a {type(source).__name__} without {', '.join(missing)}; expected a discovery.Source"
        raise SOURCES.unusable(scheme, found.package, said)
    return source
