"""What an installed package imports to add a source to discovery: docs/extending.md walks through one.

It declares entry points in the group `adsum.sources`. The name of each is a URL scheme, in lower-case letters, the object
it refers to is an `OpenSource`.
"""

from typing import Final, Protocol

from discovery.instance import Instance, InstanceStatus
from discovery.source import Candidate, ComponentKey, Report, Snapshot, Source
from runtime.entry_points import PluginGroup

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
    opened: Source | None = SOURCES.open(
        scheme, url, expected="discovery.extension.OpenSource", members=_MEMBERS
    )
    return opened


def listed(group: PluginGroup) -> str:
    """The schemes of installed packages, to end a list of those that there are."""
    return "".join(f", {name}://... ({package})" for name, package in group.packages().items())
