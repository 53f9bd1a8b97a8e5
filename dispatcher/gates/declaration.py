"""How an installed package declares a gate; it imports these names from `dispatcher.extension`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatcher.gates.gate import DispatchGate
from dispatcher.gates.parameters import NoGateParameters, Parameters


@dataclass(frozen=True, slots=True)
class GateContext:
    """Where a gate is used. `target`: the name of what its requests are sent to. `concurrency`: how many
    requests this process sends there at once; None: not known.
    """

    target: str
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDeclaration:
    """One kind of gate.

    `build` is called with the parameters and a GateContext; a ValueError is shown as a mistake in the parameters. It opens
    nothing: entering the gate does. `parameters`: the fields of `params`.
    """

    build: Callable[[Any, GateContext], DispatchGate]
    parameters: type[Parameters] = NoGateParameters
