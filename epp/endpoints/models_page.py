"""Renders the pool's own answer to `GET /v1/models`: the union of what its endpoints serve, in OpenAI's form. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.served_model import ServedModel

MODELS_PATH: Final = "/v1/models"


class ModelsPage:
    """Rendered once for each set of endpoints. `only`: the only models that exist; empty: no such rule."""

    def __init__(self, only: frozenset[str]) -> None:
        self._only = only
        self._endpoints: Sequence[Endpoint] = ()
        self._page: bytes | None = None

    def render(self, endpoints: tuple[Endpoint, ...]) -> bytes | None:
        """The page; None if no model is known, so that a worker has to answer."""
        if endpoints is not self._endpoints:
            self._endpoints, self._page = endpoints, self._rendered(endpoints)
        return self._page

    def _rendered(self, endpoints: Sequence[Endpoint]) -> bytes | None:
        union = {name: ServedModel(id=name) for name in self._only}
        for endpoint in endpoints:
            for model in _models_of(endpoint):
                if not self._only or model.id in self._only:
                    known = union.get(model.id)
                    # what a worker lists says more than a declared name
                    union[model.id] = model if known is None or not known.owned_by else known
        if not union:
            return None
        models = sorted(union.values(), key=lambda model: (model.parent is not None, model.id))
        return json.dumps({"object": "list", "data": [_entry(model) for model in models]}).encode()


def _models_of(endpoint: Endpoint) -> Iterator[ServedModel]:
    yield from (ServedModel(id=name) for name in endpoint.models)
    if not endpoint.models:
        yield from endpoint.listed_models


def _entry(model: ServedModel) -> dict[str, Any]:
    entry = {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by or "adsum",
        "root": model.root,
        "parent": model.parent,
        "max_model_len": model.max_model_len,
    }
    return {name: value for name, value in entry.items() if value is not None}
