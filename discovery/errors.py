"""All errors of discovery and registry:

AdsumError
├── DiscoveryError                  the set of instances cannot be known
│   ├── DiscoveryTimeoutError       (also TimeoutError) not within the timeout; says what the source reported last
│   ├── ForbiddenError              (also PermissionError) the source of truth refused us; says which right is missing
│   ├── InputFileError              (also ValueError) a file that a URL or a flag names is missing or not valid
│   └── MetadataUnavailableError    one worker's metadata cannot be read; says why
│       └── WorkerUnreachableError  because nothing, or another worker, answers at its address
└── RegistrationError               a worker cannot register; says what is missing

A wrong argument is a plain `ValueError` or `TypeError` that names the rule.
"""

from adsum.errors import AdsumError

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
    """No result within the timeout. The text has the last problem that the source reported."""


class ForbiddenError(DiscoveryError, PermissionError):
    """The source of truth refused a request. The text names the missing right."""


class InputFileError(DiscoveryError, ValueError):
    """A file that a URL or a flag names is missing or not valid. The text names the file and the fault."""


class MetadataUnavailableError(DiscoveryError):
    """One worker's metadata cannot be read; `reason` is the short cause that `explain` shows.

    `connected`: its address accepted a connection.
    """

    def __init__(self, instance_id: str, authority: str, reason: str, *, connected: bool = False) -> None:
        super().__init__(f"metadata of {instance_id} at {authority} is unavailable: {reason}")
        self.instance_id = instance_id
        self.authority = authority
        self.reason = reason
        self.connected = connected


class WorkerUnreachableError(MetadataUnavailableError):
    """Refused, reset, silent, or another instance answered. The worker may be gone; only the source can tell.

    `silent`: the only fault is that no answer came in time.
    """

    def __init__(
        self, instance_id: str, authority: str, reason: str, *, connected: bool = False, silent: bool = False
    ) -> None:
        super().__init__(instance_id, authority, reason, connected=connected)
        self.silent = silent


class RegistrationError(AdsumError):
    """A worker cannot register. The text says what was expected and what to do."""
