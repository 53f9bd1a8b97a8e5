"""What an installed package imports to let workers register in a store of its own: docs/extending.md walks through one.

It declares entry points in the group `adsum.registries`. The name of each is a URL scheme, in lower-case letters, the
object it refers to is an `OpenMembership`. Readers find these workers by a source of the same scheme (`discovery.extension`).
"""

from collections.abc import Callable
from typing import Final, Protocol

from discovery.errors import RegistrationError
from discovery.instance import Instance, InstanceStatus
from registry.handle import Membership
from runtime.entry_points import PluginGroup

__all__ = ["Instance", "InstanceStatus", "Membership", "OpenMembership", "RegistrationError"]

REGISTRIES: Final = PluginGroup("adsum.registries", "URL scheme", ("file", "kubernetes", "memory", "static"))


class OpenMembership(Protocol):
    """From a URL to how one instance is made visible there."""

    def __call__(self, url: str, /) -> Callable[[], Membership]:
        """What it returns is called once for each instance that registers, and connects to nothing before `Membership.join`.

        Raises ValueError for a URL that is not sound.
        """


def open_installed(url: str, scheme: str) -> Callable[[], Membership] | None:
    """Of an installed package; None where no package declares that scheme. Raises ValueError."""
    opened: Callable[[], Membership] | None = REGISTRIES.open(
        scheme, url, expected="registry.extension.OpenMembership", members=()
    )
    return opened
