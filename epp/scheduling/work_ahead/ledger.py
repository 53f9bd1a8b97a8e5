"""The prompts that were sent to one endpoint and are not computed yet, how fast it computes, and what a pool adds up to. Pure.

A worker computes prompts in the order of their arrival, and its page counts the tokens of those that are done. So the
prompts that are still ahead are the newest of what was sent, beyond what the counter has grown by. How much is ahead does
not depend on an estimated rate: a rate that is wrong by a quarter costs more than it tells.
Only ratios of speeds are used, so nothing depends on how fast the machines are.
"""

from collections import deque
from math import inf
from statistics import median
from typing import Final

from epp.scheduling.work_ahead.cost_model import WorkerPace
from epp.scheduling.work_ahead.prompt_counter import CountedEnds, CounterKind, KindSums
from epp.scheduling.work_ahead.savepoint import Savepoint

TRANSIT: Final = 0.25
"""Seconds in which a request that was sent may not have reached the worker's page."""
_WINDOW: Final = 500_000.0
"""Tokens over which the counter is compared with what was sent."""
_PRIOR: Final = 50_000.0
"""Tokens with which both sums begin: the counter is believed at first."""
_MAX_SCALE: Final = 4.0
_NEARLY: Final = 0.98
"""The share of a prompt's tokens, which are estimated, by which the counter must have grown."""
_BASE_TOKENS: Final = 150.0
"""Prompt tokens that a worker could compute in the fixed part of a request's time: without them short prompts look slow."""
_STALE: Final = 5.0
"""Seconds. A page that was not read for so long tells nothing of prompts that were sent since."""
_SPARE_ROOM: Final = 64
"""Withdrawn prompts that may stay between others, beside as many as are not withdrawn: taking each out at once costs more."""
_LONGEST_LOOK: Final = 1.0
"""Seconds. Two pages that are further apart say nothing of the worker's speed: it may have been stopped."""
_STATE: Final = (
    "ahead", "since", "done", "busy", "under_way", "_sent", "_count", "_computed", "read_at", "_spare", "_unsettled",
    "_scale", "sent", "grown", "held", "_begun", "slowness", "_most_running", "room",
)  # fmt: skip
"""The attributes that a page changes."""


class SentPrompt:
    """A prompt on its way: `tokens` of it, `missing` of them not in the endpoint's cache; both 0 once it is withdrawn. `ahead`: those
    that are still to be computed. `begun`: the first byte of its answer came. `size`: all its tokens, for good.
    """

    __slots__ = ("ahead", "begun", "missing", "sent_at", "size", "tokens")

    def __init__(self, tokens: float, missing: float, sent_at: float) -> None:
        self.tokens = self.size = tokens
        self.missing = self.ahead = missing
        self.sent_at = sent_at
        self.begun = False


class WorkLedger:
    """`ahead`: the tokens that are still to be computed there. Times in seconds of one clock.

    The counter grows by more than this picker sent, because other pickers send too, and by other numbers, because tokens
    of a prompt are estimated from its bytes. So its growth is scaled by the ratio of both sums over the last half a million
    tokens.

    `held`: prompts are ahead until their first bytes come, because the counter tells of something else, or there is none. `since`:
    when the last of what was ahead was done, or the first of it came.
    """

    def __init__(self, pool: KindSums | None = None, ends: CountedEnds | None = None) -> None:
        self.ahead = 0.0
        self.since = -inf
        self.done = 0.0
        """Tokens that were computed in the time `busy`, each prompt's fixed part included."""
        self.busy = 0.0
        """Seconds in which something was ahead, until the last of it was done."""
        self.under_way = 0.0
        """The same since then."""
        self._sent: deque[SentPrompt] = deque()
        self._count = 0
        self._computed = -1.0
        self.read_at = -inf
        """When the last page came; -inf: there was none."""
        self._spare = self._unsettled = 0.0
        self._scale = 1.0
        self.sent = self.grown = _PRIOR
        """Tokens that were sent from here, and by how much the counter grew, both lately."""
        self.held = False
        self._begun = 0.0
        self.kind = CounterKind(pool or KindSums())
        self.ends = CountedEnds(ends)
        self.pace = WorkerPace()
        self.slowness = 1.0
        """How many times longer it takes than the endpoint in the middle of its pool, as of its last page."""
        self._most_running = 0.0
        self.room = inf
        """Requests that ran at most while others waited; inf: none waited there."""

    def send(self, tokens: float, missing: float, now: float) -> SentPrompt:
        prompt = SentPrompt(tokens, missing, now)
        self._sent.append(prompt)
        if not self._count:
            self.since = now
        self._count += 1
        self.ahead += missing
        self.sent += tokens
        self._unsettled += tokens
        return prompt

    def withdraw(self, prompt: SentPrompt) -> None:
        """It is computed, failed, or went elsewhere. May be called twice."""
        if prompt.tokens:
            self._count -= 1
            self._unsettled = self._unsettled - prompt.tokens if self._count else 0.0
            self.ahead = max(0.0, self.ahead - prompt.ahead) if self._count else 0.0
            prompt.tokens = prompt.missing = prompt.ahead = 0.0
        while self._sent and not self._sent[0].tokens:  # a page that is never read would leave them here
            self._sent.popleft()
        if len(self._sent) > 2 * self._count + _SPARE_ROOM:
            self._sent = deque([one for one in self._sent if one.tokens])

    def fail(self, prompt: SentPrompt) -> None:
        """It is not computed here."""
        self.sent = max(0.0, self.sent - prompt.tokens)
        self.withdraw(prompt)

    def end(self, prompt: SentPrompt) -> None:
        """Its answer, which is not streamed, is complete."""
        self.ends.end(prompt.size)
        self.withdraw(prompt)

    def finish(self, prompt: SentPrompt) -> None:
        """Another worker goes on with it: it is computed, though the counter may show it later."""
        if self.held and prompt.tokens:
            self._begun += prompt.missing + _BASE_TOKENS
            self.withdraw(prompt)
        self.ahead = max(0.0, self.ahead - prompt.ahead)
        prompt.ahead = 0.0

    @property
    def counts(self) -> str:
        """Say in words what its counter of prompt tokens counts."""
        if self._computed < 0.0:
            return "there is none"
        if self.kind.begins:
            return "begun answers"
        if self.ends.found:
            return "ended answers"
        return "not known yet" if self.kind.begins is None else "something else"

    def hold(self, held: bool) -> None:
        """Let first bytes say what is ahead from now on, or pages again."""
        if held:
            for prompt in [one for one in self._sent if one.begun]:
                self.withdraw(prompt)
        self.held = held

    def begin(self, prompt: SentPrompt, now: float) -> None:
        """The first byte of its answer came now."""
        prompt.begun = True
        self.kind.first_byte(prompt.tokens, now)
        if self.held and prompt.tokens:
            self._begun += prompt.missing + _BASE_TOKENS
            self.since = now
            self.withdraw(prompt)

    def read(
        self, computed: float, waiting: float, running: float, now: float, *, period: float = 0.0
    ) -> None:
        """A page says that prompts of so many tokens are computed, and that so many requests wait and run.

        `computed` negative: the page does not say. A smaller number than before is that of a new process. `period`: seconds
        until the next page, at least twice what a page takes: this one may be so much older than `now`.
        """
        before, self._computed = self._computed, computed
        since, self.read_at = self.read_at, now
        began = self._sent[0].sent_at if self._sent else now
        counted = self._counts_begun(before, now)
        self._look_for_room(waiting, running)
        done = 0.0
        if counted and before >= 0.0:
            if computed < before:
                self._withdraw_oldest(self._count)
            else:
                done += self._settle(computed - before, waiting)
        # a prompt that is not computed is a request that waits or runs: whatever is beyond those is done. Without a counter
        # the page does not say which of those that run are computed, and all are taken to be.
        there = waiting + running if counted or self.held else waiting
        done += self._withdraw_oldest(
            self._count - self._sent_after(now - TRANSIT - period / 2.0) - int(there)
        )
        if done:
            self.since = now
        done, self._begun = done + self._begun, 0.0
        if (self.held or (counted and before >= 0.0)) and now - since < max(_LONGEST_LOOK, 3.0 * period):
            self.under_way += max(0.0, now - max(since, began))
            if done:
                self.busy += self.under_way
                self.done += done
                self.under_way = 0.0
        if not self._count:
            self._sent.clear()
            self._spare = self.under_way = 0.0

    def _counts_begun(self, before: float, now: float) -> bool:
        """Whether the counter on this page says what is computed."""
        computed = self._computed
        if computed >= 0.0:
            self.kind.read(computed, now)
        if computed >= before >= 0.0:
            self.ends.read(computed - before)
        return computed >= 0.0 and not self.held and (self.kind.begins is True or not self.ends.found)

    def _look_for_room(self, waiting: float, running: float) -> None:
        """It has room for as many as ran at most, once others waited meanwhile."""
        if running > self._most_running:
            self._most_running, self.room = running, inf
        if waiting and running >= self._most_running:
            self.room = running

    def follows(self, prompt: SentPrompt) -> bool:
        """Whether pages will tell when it is done."""
        return self.read_at > prompt.sent_at - _STALE

    def save(self, savepoint: Savepoint) -> None:
        for prompt in self._sent:
            savepoint.keep(prompt, "tokens", "missing", "ahead")
        savepoint.keep(self, *_STATE)
        self.kind.save(savepoint)
        self.ends.save(savepoint)

    def late(self, speed: float) -> float:
        """Tokens of the time since it should have been done, at this speed, with the first prompt that is ahead."""
        first = self._sent[0].missing + _BASE_TOKENS if self._sent else 0.0
        return max(0.0, self.under_way * speed - first)

    def forget_half(self) -> None:
        """Count what is known of its speed half."""
        self.done /= 2.0
        self.busy /= 2.0

    def _settle(self, growth: float, waiting: float) -> float:
        kept = max(0.0, 1.0 - growth / _WINDOW)
        # what waits fades only once the counter has grown by it: else each prompt weighs less than its growth, and seems to be ahead
        waits = self._unsettled
        settled, self.grown = (self.sent - waits) * kept, self.grown * kept + growth
        if not kept:  # so much at once says nothing of what was sent from here
            settled = self.grown = _PRIOR
        self.sent = settled + waits
        # the counter has not grown by what waits yet: the ratio lies between the one without it and the one with it
        low, high = settled / self.grown, self.sent / self.grown
        scale = self._scale + (high - self._scale) * (1.0 - kept)
        self._scale = min(max(scale, low, 1.0 / _MAX_SCALE), high, _MAX_SCALE)
        self._spare += growth * self._scale
        done = 0.0
        # growth by nearly a whole prompt is by that one: a remainder would keep every later one that is short ahead
        while self._sent and self._sent[0].tokens * _NEARLY <= self._spare + 0.5 and self._count > waiting:
            prompt = self._sent.popleft()
            self._spare = max(0.0, self._spare - prompt.tokens)
            if prompt.tokens:
                done += prompt.missing + _BASE_TOKENS
            self.withdraw(prompt)
        return done

    def _sent_after(self, time: float) -> int:
        count = 0
        for prompt in reversed(self._sent):
            if prompt.sent_at <= time:
                break
            count += prompt.tokens > 0.0
        return count

    def _withdraw_oldest(self, count: int) -> float:
        done = 0.0
        while count > 0 and self._sent:
            prompt = self._sent.popleft()
            if prompt.tokens:
                done += prompt.missing + _BASE_TOKENS
                self.withdraw(prompt)
                count -= 1
        return done


_PRIOR_WORK: Final = 20_000.0
"""Tokens that an endpoint is taken to have computed at the speed of the pool: the less it did, the less is concluded."""
_HALF_AFTER: Final = 200_000.0
"""Tokens after which what was learnt counts half: a machine may become slower, or be throttled."""
_MOST_DIFFERENT: Final = 4.0
"""The most by which an endpoint is taken to differ from the average."""
_OTHERS_BELOW: Final = 0.6
_OTHERS_UNTIL: Final = 0.8
"""If less of what the workers compute was sent from here, others send too, until more was. The rest may be a wrong guess of
bytes per token, and what chat templates and tools add.
"""
_FADES: Final = 300.0
"""Seconds after which what was learnt of a worker's speed counts half, whatever it does: who gets nothing teaches nothing."""

_COLD_REQUESTS: Final = 10
"""Requests for each endpoint up to which all caches are taken to be cold."""
_NOTHING: Final = (0.0, 0.0)


class PoolTotals:
    """Sums over the ledgers of one pool, kept up to date as they read pages."""

    def __init__(self) -> None:
        self.speed = 0.0
        """The speed of the endpoint in the middle, in tokens a second: one whose page lies moves an average, for all others."""
        self._pages = 0
        """This many were read since `speed` was found."""
        self._sent = self._grown = 0.0
        self._halved_at: dict[WorkLedger, float] = {}
        self.cold = True
        self._requests = 0
        self.others_send = False
        """Whether the workers compute clearly more than was sent from here."""
        self._known: dict[WorkLedger, tuple[float, float]] = {}

    def send(self, endpoints: int) -> None:
        """A request goes to one of so many."""
        self._requests += 1
        self.cold = self.cold and self._requests < _COLD_REQUESTS * endpoints

    def update(self, ledger: WorkLedger) -> None:
        """The ledger has read a page."""
        halved_at = self._halved_at.setdefault(ledger, ledger.read_at)
        if ledger.read_at - halved_at > _FADES or max(ledger.done, ledger.busy * self.speed) > _HALF_AFTER:
            ledger.forget_half()
            self._halved_at[ledger] = ledger.read_at
        sent, grown = self._known.get(ledger, _NOTHING)
        self._known[ledger] = (ledger.sent, ledger.grown)
        self._pages += 1
        if self._pages >= len(self._known):
            self._find_speed()
        self._sent += ledger.sent - sent
        self._grown += ledger.grown - grown
        limit = _OTHERS_UNTIL if self.others_send else _OTHERS_BELOW
        self.others_send = self._sent < limit * self._grown

    def save(self, savepoint: Savepoint) -> None:
        savepoint.keep(self, "speed", "_pages", "_sent", "_grown", "others_send", "_halved_at", "_known")

    def forget(self, ledger: WorkLedger) -> None:
        """Its endpoint is gone."""
        self._halved_at.pop(ledger, None)
        sent, grown = self._known.pop(ledger, _NOTHING)
        self._sent -= sent
        self._grown -= grown
        if not self._known:  # sums of floats that were added and taken away again are not quite 0
            self.speed = self._sent = self._grown = 0.0

    def _find_speed(self) -> None:
        self._pages = 0
        speeds = [ledger.done / ledger.busy for ledger in self._known if ledger.busy > 0.0]
        self.speed = median(speeds) if speeds else 0.0

    def slowness(self, ledger: WorkLedger) -> float:
        """How many times longer it takes than the endpoint in the middle; more than 1 is slower. Where first bytes say what is
        ahead they say this too: prompts may be computed side by side, so tokens in a time say nothing.
        """
        if ledger.held:
            return ledger.pace.slowness
        # a prompt is done as a whole, so its time counts when it is, or when it is late: else who computes a long one seems slow
        busy = ledger.busy * self.speed + ledger.late(self.speed)
        slow = (busy + _PRIOR_WORK) / (ledger.done + _PRIOR_WORK)
        return min(max(slow, 1.0 / _MOST_DIFFERENT), _MOST_DIFFERENT)
