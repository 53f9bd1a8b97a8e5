"""Registers a worker: publishes its metadata and readiness, and drains it on the way down."""

from typing import TYPE_CHECKING

from adsum.imports import check_not_shadowed, lazy_imports

check_not_shadowed("discovery")

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
    from discovery.errors import AdsumError as AdsumError
    from discovery.errors import RegistrationError as RegistrationError
    from discovery.instance import Instance as Instance
    from discovery.instance import InstanceStatus as InstanceStatus
    from registry.contract import Contract as Contract
    from registry.handle import Membership as Membership
    from registry.opening import open as open
    from registry.service import InstanceHandle as InstanceHandle
    from registry.service import Registration as Registration
    from registry.service import ServiceRegistry as ServiceRegistry
    from registry.service import StatusWord as StatusWord
else:
    __getattr__, __dir__, __all__ = lazy_imports(__name__, _EXPORTS)
