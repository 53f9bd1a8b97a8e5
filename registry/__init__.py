"""Registers a worker: publishes its metadata and readiness, and drains it on the way down."""

from typing import TYPE_CHECKING

from adsum.imports import check_not_shadowed, lazy_imports

check_not_shadowed("discovery")

__all__ = [
    "AdsumError",
    "Contract",
    "Instance",
    "InstanceHandle",
    "InstanceStatus",
    "Membership",
    "Registration",
    "RegistrationError",
    "ServiceRegistry",
    "StatusWord",
    "open",
]

_EXPORTS = {
    "discovery.errors": ("AdsumError", "RegistrationError"),
    "discovery.instance": ("Instance", "InstanceStatus"),
    "registry.contract": ("Contract",),
    "registry.handle": ("Membership",),
    "registry.opening": ("open",),
    "registry.service": ("InstanceHandle", "Registration", "ServiceRegistry", "StatusWord"),
}
"""The same names as the imports below: type checkers read those, `lazy_imports` reads these."""

if TYPE_CHECKING:
    from discovery.errors import AdsumError, RegistrationError
    from discovery.instance import Instance, InstanceStatus
    from registry.contract import Contract
    from registry.handle import Membership
    from registry.opening import open
    from registry.service import InstanceHandle, Registration, ServiceRegistry, StatusWord
else:
    __getattr__, __dir__ = lazy_imports(__name__, _EXPORTS)
