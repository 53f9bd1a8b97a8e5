"""Finds the endpoints that serve a model, once for each set of endpoints and model. Pure."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from epp.endpoints.endpoint import Endpoint, Mask
from epp.endpoints.selection import Selections


class EndpointIndex:
    """Lookups that depend on the endpoints alone.

    `served`: the names that each endpoint declares, or else lists. `groups`: the rows of the endpoints with equal names:
    a pool has few such sets, and they are compared by identity first. `selections`: what was lately selected of the
    endpoints. A change of one endpoint makes a new index, so nothing is computed for a model before it is asked for.
    """

    def __init__(self, endpoints: tuple[Endpoint, ...], served: Iterable[frozenset[str]]) -> None:
        self.endpoints = endpoints
        self.selections = Selections(endpoints)
        self.groups: dict[frozenset[str], list[int]] = {}
        for row, names in enumerate(served):
            self.groups.setdefault(names, []).append(row)
        self.restricts = any(self.groups)
        """Whether any endpoint declares or lists a model."""
        self.found: dict[str, Mask | None] = {}
        """What `serving` returned, by model, to be looked at before it is called."""

    def serving(self, model: str) -> Mask | None:
        """The endpoints that declare or list the model, or nothing at all; None: all endpoints."""
        rows = [row for names, members in self.groups.items() if model in names for row in members]
        if not rows:  # not remembered: the name is the client's
            return self.unknown
        mask = self.unknown.copy()
        mask[rows] = True
        found = self.found[model] = None if mask.all() else mask
        return found

    @cached_property
    def unknown(self) -> Mask:
        """The endpoints that neither declare nor list a model."""
        mask = np.zeros(len(self.endpoints), dtype=np.bool_)
        mask[self.groups.get(frozenset(), [])] = True
        return mask

    @cached_property
    def listing(self) -> Mask:
        """The endpoints that list models and declare none."""
        listing = [bool(one.listed_models) and not one.models for one in self.endpoints]
        return np.array(listing, dtype=np.bool_)
