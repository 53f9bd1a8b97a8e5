"""All names that an installed package may import to add a gate: docs/extending.md walks through one.

It declares entry points in the group `adsum.gates`. The name of each is the type of a gate in the configuration, the
object it refers to is a `GateDeclaration`.
"""

from dispatcher.broker.message import DispatchCandidate
from dispatcher.broker.wake_up import Changes
from dispatcher.gates.declaration import GateContext, GateDeclaration
from dispatcher.gates.gate import DispatchGate, Outcome, RefusedError, Scope, Slot
from dispatcher.gates.parameters import Duration, NoGateParameters, Parameters

__all__ = [
    "Changes",
    "DispatchCandidate",
    "DispatchGate",
    "Duration",
    "GateContext",
    "GateDeclaration",
    "NoGateParameters",
    "Outcome",
    "Parameters",
    "RefusedError",
    "Scope",
    "Slot",
]
