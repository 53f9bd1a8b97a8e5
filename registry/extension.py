"""The names that an installed package imports to add a registry: a store of its own that workers register in (docs/extending.md).

The package declares entry points in the group `adsum.registries`. Each is named by a URL scheme in lower-case letters
and refers to an `OpenMembership`. A source of the same scheme (`discovery.extension`) finds these workers.
"""

from collections.abc import Callable
from typing import Final, Protocol

from adsum.entry_points import PluginGroup
from discovery.errors import RegistrationError
from discovery.instance import Instance, InstanceStatus
from discovery.source import SCHEMES
from registry.handle import Membership

__all__ = ["Instance", "InstanceStatus", "Membership", "OpenMembership", "RegistrationError"]

REGISTRIES: Final = PluginGroup("adsum.registries", "URL scheme", SCHEMES.keys())


class OpenMembership(Protocol):
    """Turns a registry URL into a factory of memberships."""

    def __call__(self, url: str, /) -> Callable[[], Membership]:
        """The returned factory is called once for each instance that registers. Connect in `Membership.join`, not before.

        Raises ValueError for an invalid URL.
        """


def open_installed(url: str, scheme: str) -> Callable[[], Membership] | None:
    """The factory that an installed package makes of the URL; None if no package declares the scheme. Raises ValueError."""
    opened: Callable[[], Membership] | None = REGISTRIES.open(
        scheme, url, expected="registry.extension.OpenMembership", members=()
    )
    return opened
