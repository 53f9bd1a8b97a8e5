"""All names that an installed package may import to add a gate or a broker; docs/extending.md and docs/brokers.md.

It declares entry points in the group `adsum.gates`: the name of each is the type of a gate in the configuration, the
object it refers to is a `GateDeclaration`. Or in the group `adsum.brokers`: each is named by a URL scheme in lower-case
letters and refers to an `OpenBroker`.
"""

from dispatcher.broker.capacity.account import TargetAccount
from dispatcher.broker.contract.ledger import Ledger, LedgerState, Reading, Refusal, Reservation
from dispatcher.broker.contract.message import (
    Claim,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Fault,
    Request,
    Result,
    new_token,
)
from dispatcher.broker.contract.queue import (
    Broker,
    ConflictError,
    LeasedResult,
    Queue,
    QueueError,
    QueueFullError,
    QueueLimits,
    QueueRules,
    State,
    TenantBacklog,
    Totals,
)
from dispatcher.broker.contract.quota import Grant, Quota, QuotaMode, Quotas
from dispatcher.broker.contract.validation import (
    CANCELLED,
    DEAD_LETTERS_KEPT,
    EXPIRED,
    FINISH_REMEMBERED_MS,
    KEY_CONFLICT,
    LONGEST_LEASE_MS,
    POISON,
    RAW_KEPT,
    check_key,
    check_request,
    checked_name,
    checked_rules,
    counted_as,
    deadline_error,
    digest,
    error_payload,
    exceeded_limit,
    full_error,
)
from dispatcher.broker.contract.wake_up import Changes
from dispatcher.broker.installed import OpenBroker
from dispatcher.gates.declaration import GateContext, GateDeclaration
from dispatcher.gates.gate import DispatchGate, Outcome, RefusedError, Scope, Slot
from dispatcher.gates.parameters import Duration, NoGateParameters, Parameters

__all__ = [
    "CANCELLED",
    "DEAD_LETTERS_KEPT",
    "EXPIRED",
    "FINISH_REMEMBERED_MS",
    "KEY_CONFLICT",
    "LONGEST_LEASE_MS",
    "POISON",
    "RAW_KEPT",
    "Broker",
    "Changes",
    "Claim",
    "ConflictError",
    "DeadLetter",
    "DispatchCandidate",
    "DispatchGate",
    "Duration",
    "ErrorCode",
    "Fault",
    "GateContext",
    "GateDeclaration",
    "Grant",
    "LeasedResult",
    "Ledger",
    "LedgerState",
    "NoGateParameters",
    "OpenBroker",
    "Outcome",
    "Parameters",
    "Queue",
    "QueueError",
    "QueueFullError",
    "QueueLimits",
    "QueueRules",
    "Quota",
    "QuotaMode",
    "Quotas",
    "Reading",
    "Refusal",
    "RefusedError",
    "Request",
    "Reservation",
    "Result",
    "Scope",
    "Slot",
    "State",
    "TargetAccount",
    "TenantBacklog",
    "Totals",
    "check_key",
    "check_request",
    "checked_name",
    "checked_rules",
    "counted_as",
    "deadline_error",
    "digest",
    "error_payload",
    "exceeded_limit",
    "full_error",
    "new_token",
]
