"""What a call to etcd raises, beside `ForbiddenError` and `InputFileError`."""

from discovery.errors import DiscoveryError


class EtcdUnavailableError(DiscoveryError):
    """No member answers, or not with what was asked for; it may pass."""


class EtcdTokenError(EtcdUnavailableError):
    """The token of our authentication is not valid any more."""


class CompactedRevisionError(EtcdUnavailableError):
    """etcd has forgotten the revision that was asked for."""


class TooLargeAnswerError(EtcdUnavailableError):
    """The answer is larger than we accept."""


class LeaseExpiredError(EtcdUnavailableError):
    """etcd does not know the lease any more."""


class EtcdWithoutUsersError(EtcdUnavailableError):
    """Authentication is not enabled in that cluster."""
