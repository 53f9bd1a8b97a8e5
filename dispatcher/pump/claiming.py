"""The way of the candidates of one round: the gate is asked, what it admits is claimed, and each claim gets an admission.

    candidates ── ask ──► admissions ── claim ──► claims ── pair ──► launched, each with its admission
                   │          │                     │
                   ▼          ▼ overtaking,         ▼ without an admission
                refused         or left over        asked for once more, else released to the queue
                                released unused

`HeldAdmissions` holds what the gate granted from its answer to the launch, so nothing is lost whatever fails in between.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dispatcher.broker.contract.message import Claim, DispatchCandidate
from dispatcher.broker.contract.queue import Queue
from dispatcher.gates.admission import Admission, HeldAdmissions
from dispatcher.gates.gate import DispatchGate, RefusedError, Scope

Refused = tuple[DispatchCandidate, RefusedError]
Launch = Callable[[Claim, Admission, float], None]
"""Takes over a claim and its admission. The third argument: the monotonic clock before the claim was requested, in seconds.
The lease began no earlier."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Admissions that are claimed together. `skip`: the tenants that were refused before them."""

    admissions: list[Admission]
    skip: frozenset[str]


def in_order(
    candidates: Sequence[DispatchCandidate], answers: Sequence[Admission | RefusedError]
) -> tuple[list[Batch], list[Refused]]:
    """The requests to claim, and the refusals, in the order of the queue.

    Nothing overtakes: an admission behind a refusal of the whole queue, or of its own tenant, is in no batch.
    """
    batches: list[Batch] = []
    refused: list[Refused] = []
    blocked: frozenset[str] = frozenset()
    for candidate, answer in zip(candidates, answers, strict=True):
        if candidate.tenant in blocked:
            continue
        if isinstance(answer, RefusedError):
            refused.append((candidate, answer))
            blocked |= {candidate.tenant}
            if answer.scope is Scope.QUEUE:
                break
        elif batches and batches[-1].skip == blocked:
            batches[-1].admissions.append(answer)
        else:
            batches.append(Batch([answer], blocked))
    return batches, refused


def pair(claims: Sequence[Claim], admissions: Sequence[Admission]) -> Iterator[tuple[Claim, Admission]]:
    """Each claim with its own admission, else with one of the same tenant for a request at least as large.

    Other replicas claim from the same queue, so a claim can return requests that this pump did not peek at. A claim that no
    admission covers is left out.
    """
    left = {admission.candidate.token: admission for admission in admissions}
    others = []
    for claim in claims:
        if admission := left.pop(claim.request.token, None):
            yield claim, admission
        else:
            others.append(claim)
    for claim in others:
        fitting = (token for token, admission in left.items() if _covers(admission.candidate, claim))
        if token := next(fitting, None):
            yield claim, left.pop(token)


def _covers(candidate: DispatchCandidate, claim: Claim) -> bool:
    return candidate.tenant == claim.request.tenant and candidate.size >= len(claim.request.payload)


class Claimer:
    """Claims for one queue what its gate admits, and passes it to `launch`."""

    def __init__(self, queue: Queue, gate: DispatchGate, owner: str, launch: Launch) -> None:
        self._queue = queue
        self._gate = gate
        self._owner = owner
        self._launch = launch

    async def claim_admitted(
        self, candidates: Sequence[DispatchCandidate], skipped: frozenset[str]
    ) -> list[Refused]:
        """Claim and launch; returns the refusals. `skipped`: tenants without candidates."""
        async with HeldAdmissions() as held:
            answers = await held.ask_all(self._gate, candidates)
            batches, refused = in_order(candidates, answers)
            claimable = {admission for batch in batches for admission in batch.admissions}
            granted = (answer for answer in answers if isinstance(answer, Admission))
            await held.release([admission for admission in granted if admission not in claimable])
            for batch in batches:
                await self._claim(batch.admissions, batch.skip | skipped, held)
        return refused

    async def _claim(self, admissions: list[Admission], skip: frozenset[str], held: HeldAdmissions) -> None:
        started = time.monotonic()
        claims = await self._queue.claim(len(admissions), owner=self._owner, skip_tenants=skip)
        unsent = {claim.fence: claim for claim in claims}

        def launch(claim: Claim, admission: Admission) -> None:
            held.take([admission])
            del unsent[claim.fence]
            self._launch(claim, admission, started)

        try:
            for claim, admission in pair(claims, admissions):
                launch(claim, admission)
            await held.release(admissions)  # what is left over makes room for the claims that nothing covers
            for claim in list(unsent.values()):
                answer = await held.ask(self._gate, _candidate_of(claim))
                if isinstance(answer, Admission):
                    launch(claim, answer)
        finally:
            if unsent:
                await self._queue.release(list(unsent.values()))


def _candidate_of(claim: Claim) -> DispatchCandidate:
    request = claim.request
    size = len(request.payload)
    return DispatchCandidate(request.id, request.token, request.tenant, request.deadline_ms, size)
