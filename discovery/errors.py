"""What can go wrong, in one tree.

AdsumError
├── DiscoveryError                  the set of instances cannot be known
│   ├── DiscoveryTimeoutError       (also TimeoutError) not within the time given; says what was last heard
│   ├── ForbiddenError              (also PermissionError) the source of truth refuses us; says which right is missing
│   ├── InputFileError              (also ValueError) a file that says where to look is missing or cannot be used
│   └── MetadataUnavailableError    one worker's document cannot be had; says why
│       └── WorkerUnreachableError  because nothing answered at its address, or somebody else did
└── RegistrationError               a worker cannot announce itself; says what is missing

A wrong argument is a plain `ValueError` or `TypeError` that names the rule.
"""

from runtime.errors import AdsumError

__all__ = [
    "AdsumError",
    "DiscoveryError",
    "DiscoveryTimeoutError",
    "ForbiddenError",
    "InputFileError",
    "MetadataUnavailableError",
    "RegistrationError",
    "WorkerUnreachableError",
]


class DiscoveryError(AdsumError):
    """The set of instances cannot be known."""


class DiscoveryTimeoutError(DiscoveryError, TimeoutError):
    """Not within the time given. The text names the last thing that was heard from the source."""


class ForbiddenError(DiscoveryError, PermissionError):
    """The source of truth refuses us. The text names the missing right."""


class InputFileError(DiscoveryError, ValueError):
    """A file that says where to look is missing or cannot be used. The text names it and what is wrong in it."""


class MetadataUnavailableError(DiscoveryError):
    """One worker's metadata cannot be had; `reason` is the short cause that `explain` shows.

    `connected`: somebody listens at its address.
    """

    def __init__(self, instance_id: str, authority: str, reason: str, *, connected: bool = False) -> None:
        super().__init__(f"metadata of {instance_id} at {authority} is unavailable: {reason}")
        self.instance_id = instance_id
        self.authority = authority
        self.reason = reason
        self.connected = connected


class WorkerUnreachableError(MetadataUnavailableError):
    """Refused, reset, silent, or another instance answered: the worker may be gone, which only the source can say.

    `silent`: it did not answer in time, and nothing else was wrong.
    """

    def __init__(
        self,
        instance_id: str,
        authority: str,
        reason: str,
        *,
        connected: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(instance_id, authority, reason, connected=connected)
        self.silent = silent


class RegistrationError(AdsumError):
    """A worker cannot announce itself. The text says what was expected and what to do."""
