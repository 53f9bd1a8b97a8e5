"""I am here. How a worker announces itself: register, publish metadata, say when it is ready, drain."""

from discovery.errors import AdsumError, RegistrationError
from discovery.instance import Instance, InstanceStatus
from registry.contract import Contract
from registry.handle import Membership
from registry.opening import open
from registry.service import InstanceHandle, Registration, ServiceRegistry, StatusWord

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
