"""All that an installed package imports to add a source; docs/extending.md has an example.

The package declares entry points in the group `adsum.sources`. The name of each is a URL scheme in lower-case letters; it
refers to an `OpenSource`.
"""

from typing import Final, Protocol

from adsum.entry_points import PluginGroup
from discovery.instance import Instance, InstanceStatus
from discovery.source import SCHEMES, Candidate, ComponentKey, Report, Snapshot, Source

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

SOURCES: Final = PluginGroup("adsum.sources", "URL scheme", SCHEMES.keys())

_MEMBERS: Final = ("run", "suspect", "explain", "components", "aclose")


class OpenSource(Protocol):
    """A function from a URL to a source."""

    def __call__(self, url: str, /) -> Source:
        """Raises ValueError for an invalid URL. Must not do I/O: that is for `Source.run`."""


def open_installed(url: str, scheme: str) -> Source | None:
    """The source of an installed package; None if no package declares the scheme. Raises ValueError."""
    opened: Source | None = SOURCES.open(
        scheme, url, expected="discovery.extension.OpenSource", members=_MEMBERS
    )
    return opened


def installed_schemes(group: PluginGroup) -> str:
    """The schemes of installed packages, as the end of a sentence that lists all."""
    return "".join(f", {name}://... ({package})" for name, package in group.packages().items())
