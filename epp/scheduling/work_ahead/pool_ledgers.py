"""The ledgers of all endpoints, what they add up to, and the columns of each pool, kept up to date with them."""

from math import inf
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Column, Endpoint, EndpointPool, Indices, Key
from epp.scheduling.work_ahead.columns import PoolColumns
from epp.scheduling.work_ahead.cost_model import CostModel
from epp.scheduling.work_ahead.ledger import PoolTotals, SentPrompt, WorkLedger
from epp.scheduling.work_ahead.prompt_counter import CountedEnds, KindSums
from epp.scheduling.work_ahead.savepoint import Savepoint

_SCRAPED_AT: Final = int(Column.SCRAPED_AT)  # numpy takes an int faster than an enumeration's member
_MAX_POOLS: Final = 4
"""Sets of endpoints whose columns are kept. A picker has one, tests and comparisons may have more."""


class PoolLedgers:
    """`model` says what a token ahead costs. After the process of an endpoint was replaced, its key has another ledger."""

    def __init__(self, model: CostModel) -> None:
        self.totals = PoolTotals()
        self.by_key: dict[Key, WorkLedger] = {}
        self._model = model
        self._kind, self._ends = KindSums(), CountedEnds()
        self._columns: list[PoolColumns] = []
        """The rows of the last pools, the newest last."""

    def of(self, endpoint: Endpoint) -> WorkLedger:
        ledger = self.by_key.get(endpoint.key)
        if ledger is None:
            ledger = self.by_key[endpoint.key] = WorkLedger(self._kind, self._ends)
        return ledger

    def send(self, key: Key, ledger: WorkLedger, tokens: float, missing: float, now: float) -> SentPrompt:
        prompt = ledger.send(tokens, missing, now)
        self.update_ahead(key, ledger)
        if self.totals.cold:
            self.totals.send(len(self.by_key))
            for columns in self._columns:
                row = columns.rows.get(key)
                if row is not None:
                    columns.send(row, missing * ledger.slowness)
        return prompt

    def update_ahead(self, key: Key, ledger: WorkLedger) -> None:
        """A prompt was sent there, or is computed, or will not be."""
        if self.by_key.get(key) is not ledger:
            return
        for columns in self._columns:
            row = columns.rows.get(key)
            if row is not None:
                columns.ahead[row] = ledger.ahead
                columns.ahead_cost[row] = ledger.ahead * self._model.ahead
                columns.since[row] = ledger.since

    def update(self, key: Key, ledger: WorkLedger) -> None:
        """It has read a page."""
        self.totals.update(ledger)
        slowness = ledger.slowness = self.totals.slowness(ledger)
        self.update_ahead(key, ledger)
        for columns in self._columns:
            row = columns.rows.get(key)
            if row is not None:
                columns.slowness[row] = slowness
                if ledger.room != columns.room.item(row):
                    columns.room[row] = ledger.room
                    columns.limited = columns.limited or ledger.room < inf

    def update_costs(self) -> None:
        """Something else was learnt of what a token ahead costs."""
        for columns in self._columns:
            columns.ahead_cost = columns.ahead * self._model.ahead

    def forget(self, key: Key) -> None:
        """Its process was replaced, or the endpoint is gone."""
        ledger = self.by_key.pop(key, None)
        if ledger is not None:
            self.totals.forget(ledger)
            self._columns.clear()

    def forget_columns(self) -> None:
        self._columns.clear()

    def columns(self, pool: EndpointPool) -> tuple[PoolColumns, Indices | None]:
        """The columns of all endpoints, and the rows of the pool among them; None: all."""
        if pool.selected_from is None:
            return self._columns_of(pool.endpoints), None
        return self._columns_of(pool.selected_from[0]), pool.selected_from[1]

    def row(self, pool: EndpointPool, key: Key) -> int:
        """The endpoint's row in the pool; -1: it is not there."""
        if pool.selected_from is None:
            return self._columns_of(pool.endpoints).rows.get(key, -1)
        return pool.row_by_key().get(key, -1)

    def _columns_of(self, endpoints: tuple[Endpoint, ...]) -> PoolColumns:
        # the same endpoints come as the same tuple until one of them changes, so identity is enough
        last = self._columns
        for columns in last:
            if columns.endpoints is endpoints:
                return columns
        keys = [endpoint.key for endpoint in endpoints]
        found = [self.by_key.get(key) for key in keys]
        ahead = np.array([0.0 if ledger is None else ledger.ahead for ledger in found])
        slowness = np.array([1.0 if ledger is None else self.totals.slowness(ledger) for ledger in found])
        rows = {key: row for row, key in enumerate(keys)}
        room = np.array([inf if ledger is None else ledger.room for ledger in found])
        limited = any(ledger is not None and ledger.room < inf for ledger in found)
        cost = ahead * self._model.ahead
        since = np.array([-inf if ledger is None else ledger.since for ledger in found])
        columns = PoolColumns(
            endpoints, ahead, slowness, np.full(len(keys), np.nan), rows, cost, room, limited, since,
            sent=np.zeros(len(keys)), balance=np.ones(len(keys)),
        )  # fmt: skip
        last[:] = [*last[1 - _MAX_POOLS :], columns]
        return columns

    def save(self, pool: EndpointPool, savepoint: Savepoint) -> None:
        """Keep all as it is now, if until then nothing but pages of this pool is read."""
        savepoint.keep(self, "by_key", "_columns")
        for columns in self._columns:
            columns.save(savepoint)
        for endpoint, at in zip(pool.endpoints, pool.numbers[_SCRAPED_AT].tolist(), strict=True):
            ledger = self.by_key.get(endpoint.key)
            if ledger is not None and ledger.read_at != at:
                ledger.save(savepoint)
        self.totals.save(savepoint)
