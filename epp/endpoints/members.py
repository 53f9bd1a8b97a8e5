"""The members of the pool: which endpoints discovery reports, and which of them serve a model. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from discovery import Instance
from epp.endpoints.endpoint import Endpoint, Key, Mask, Selections
from epp.endpoints.endpoint_document import EndpointDefaults, read_endpoint
from epp.endpoints.served_model import ServedModel


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
        """The results of `serving`, by model, to be looked at before it is called."""

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


class Members:
    """The endpoints of a pool by their keys, made of instances, their metadata and the models that they list.

    `index`: lookups over the present endpoints; None: they changed, and `reindex` makes another one.
    """

    def __init__(self, defaults: EndpointDefaults) -> None:
        self.endpoints: dict[Key, Endpoint] = {}
        self.index: EndpointIndex | None = None
        self._defaults = defaults
        self._instances: dict[Key, Instance] = {}
        self._documents: dict[Key, Mapping[str, Any]] = {}
        self._epochs: dict[Key, str] = {}
        # what each endpoint declares or else lists, in the order of `endpoints`; equal sets are one object
        self._served: dict[Key, frozenset[str]] = {}
        self._served_sets: dict[frozenset[str], frozenset[str]] = {}

    def reindex(self) -> EndpointIndex:
        index = self.index = EndpointIndex(tuple(self.endpoints.values()), self._served.values())
        self._served_sets = {names: names for names in index.groups}
        return index

    def put(self, instance: Instance, document: Mapping[str, Any] | None) -> Endpoint:
        """Add or change an endpoint; `document` None: the last known metadata stay."""
        key = (instance.id, instance.incarnation)
        self._instances[key] = instance
        if document is not None:
            self._documents[key] = document
        return self._read(key)

    def instance(self, key: Key) -> Instance | None:
        return self._instances.get(key)

    def restarted(self, instance: Instance) -> bool:
        """Whether its revision tells of another process than the last one did.

        A revision is incarnation, epoch, count: another epoch is a new process in the same Pod.
        """
        key = (instance.id, instance.incarnation)
        # bounded: two splits at most
        parts = (instance.revision or "").rsplit(".", 2)
        if len(parts) != 3:
            return False
        before, self._epochs[key] = self._epochs.get(key, parts[1]), parts[1]
        return before != parts[1]

    def remove(self, key: Key) -> Endpoint | None:
        endpoint = self.endpoints.pop(key, None)
        if endpoint is not None:
            del self._instances[key], self._served[key]
            self._documents.pop(key, None)
            self._epochs.pop(key, None)
        return endpoint

    def set_listed_models(self, key: Key, models: tuple[ServedModel, ...]) -> Endpoint | None:
        """The endpoint with these models; None if nothing changed, or it was removed."""
        current = self.endpoints.get(key)
        if current is None or current.listed_models == models:
            return None
        return self._store(replace(current, listed_models=models))

    def reread(self, defaults: EndpointDefaults) -> bool:
        """Make all endpoints anew. Returns whether these are other defaults."""
        if defaults == self._defaults:
            return False
        self._defaults = defaults
        for key in self._instances:
            self._read(key)
        return True

    def _read(self, key: Key) -> Endpoint:
        before = self.endpoints.get(key)
        listed = () if before is None else before.listed_models
        document = self._documents.get(key, {})
        return self._store(read_endpoint(self._instances[key], document, self._defaults, listed))

    def _store(self, endpoint: Endpoint) -> Endpoint:
        self.endpoints[endpoint.key] = endpoint
        names = endpoint.models or frozenset([listed.id for listed in endpoint.listed_models])
        self._served[endpoint.key] = self._served_sets.setdefault(names, names)
        return endpoint
