"""Gates of installed packages: configured like built-in ones, with equally good errors."""

from pathlib import Path

import pytest
import yaml

from adsum.config.problems import ConfigError
from dispatcher.gates.catalogue import parse_gate
from tests.dispatcher.gates.gate_tools import HeldSlots, open_gate
from tests.installed_package import install, see

MODULE = """\
from contextlib import asynccontextmanager
from pydantic import Field
from dispatcher.extension import Changes, Duration, GateDeclaration, Parameters, RefusedError, Scope, Slot


class TicketParameters(Parameters):
    tickets: int = Field(ge=1)
    every: Duration = 1.0


class TicketGate:
    def __init__(self, given, context):
        self.left = given.tickets
        self.changes = Changes()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_): ...

    def budget(self):
        return 1.0 if self.left else 0.0

    @asynccontextmanager
    async def admit(self, candidate):
        if not self.left:
            raise RefusedError("no ticket is left", Scope.QUEUE, lambda: self.changes.wait(60.0, self.changes.count))
        self.left -= 1
        yield Slot()


def quarrelsome(given, context):
    raise ValueError(f"the target {context.target!r} sells no tickets")


TICKETS = GateDeclaration(parameters=TicketParameters, build=TicketGate)
QUARRELSOME = GateDeclaration(build=quarrelsome)
BROKEN = GateDeclaration(build=lambda given, context: {}["tickets"])
SHUT = GateDeclaration(build=lambda given, context: 5)
UNCHECKED = GateDeclaration(parameters=dict, build=TicketGate)
"""

GATES = {
    "acme-tickets": "TICKETS",
    "acme-quarrelsome": "QUARRELSOME",
    "acme-broken": "BROKEN",
    "acme-shut": "SHUT",
    "acme-unchecked": "UNCHECKED",
    "acme-class": "TicketGate",
    "acme-absent": "NOTHING",
}


@pytest.fixture(autouse=True)
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {name: f"acme_gates:{value}" for name, value in GATES.items()}
    see(monkeypatch, install(tmp_path / "acme", "acme_gates", {"adsum.gates": points}, module=MODULE))


async def test_a_gate_of_a_package_lets_in_what_it_says() -> None:
    async with open_gate("acme-tickets", {"tickets": 2}) as gate:
        assert gate.budget() == 1.0
        slots = HeldSlots(gate)
        assert await slots.admit_all() == 2
        refusal = await slots.refused()
        assert str(refusal) == "no ticket is left"
        assert gate.budget() == 0.0


async def test_it_can_be_one_of_several() -> None:
    gates = [
        {"type": "local-max-concurrency", "params": {"limit": 5}},
        {"type": "acme-tickets", "params": {"tickets": 3}},
    ]
    async with open_gate("all-of", {"gates": gates}) as gate:
        assert await HeldSlots(gate).admit_all() == 3


def test_equal_documents_make_equal_specs() -> None:
    document = {"type": "acme-tickets", "params": {"tickets": 1}}
    assert parse_gate(document, "gate") == parse_gate(document, "gate")


MISTAKES = r"""
{type: acme-tickets} | gate.params.tickets: it is missing; this field has no default
{type: acme-tickets, params: {tickets: 0}} | gate.params.tickets: .* greater than or equal to 1
{type: acme-tickets, params: {tickets: 1, ticket: 1}} | gate.params: unknown field 'ticket'; did you mean 'tickets'\? known: tickets, every
{type: acme-tickets, params: {tickets: 1, every: soon}} | gate.params.every: .*'soon' is not a duration
{type: acme-ticket} | gate.type: 'acme-ticket' is no known gate; did you mean 'acme-tickets'
{type: acme-class} | the gate 'acme-class' of the installed package acme_gates 1.0 is <class .*; expected a dispatcher.ext
{type: acme-unchecked} | acme_gates 1.0 is GateDeclaration\(.*its parameters a Parameters
{type: acme-absent} | cannot be loaded from acme_gates:NOTHING: AttributeError: module 'acme_gates' has no attribute 'NOTHING'
"""


@pytest.mark.parametrize("row", MISTAKES.strip().splitlines())
def test_a_mistake_is_told_with_its_place(row: str) -> None:
    gate, said = row.split(" | ")
    with pytest.raises(ConfigError, match=said):
        parse_gate(yaml.safe_load(gate), "gate")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme-quarrelsome", "gate.params: the target 'pool' sells no tickets"),
        (
            "acme-broken",
            "gate.type: the gate 'acme-broken' of the installed package acme_gates 1.0 cannot be built: KeyError: 'tickets'",
        ),
        (
            "acme-shut",
            "acme_gates 1.0 built a int without __aenter__, __aexit__, budget, admit; expected a DispatchGate",
        ),
    ],
)
async def test_a_gate_that_cannot_be_built_is_an_error(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        async with open_gate(name):
            pass
