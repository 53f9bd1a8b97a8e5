"""Renders the pool's own answer to `GET /v1/models`: the union of what its endpoints serve, in OpenAI's form. Pure."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.served_model import ServedModel

MODELS_PATH: Final = "/v1/models"
T = TypeVar("T")


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
        said: dict[str, list[ServedModel]] = {name: [] for name in sorted(self._only)}
        for endpoint in endpoints:
            for model in _models_of(endpoint):
                if not self._only or model.id in self._only:
                    said.setdefault(model.id, []).append(model)
        if not said:
            return None
        models = sorted(
            (_agreed(name, one) for name, one in said.items()),
            key=lambda model: (model.parent is not None, model.id),
        )
        return json.dumps({"object": "list", "data": [_entry(model) for model in models]}).encode()


def _agreed(name: str, said: Sequence[ServedModel]) -> ServedModel:
    """Take what most workers say that list it, field by field: one worker's mistake, or lie, describes no model of the pool.

    Where as many say one thing as another, the smaller number counts: a request may go to any of them.
    """
    nothing = ServedModel(id=name)
    listed = [one for one in said if one != nothing]  # a declared name says nothing more
    if not listed:
        return nothing
    return ServedModel(
        id=name,
        created=_most_said(sorted(one.created for one in listed)),
        owned_by=_most_said([one.owned_by for one in listed]),
        root=_most_said([one.root for one in listed]),
        parent=_most_said([one.parent for one in listed]),
        max_model_len=_most_said(
            sorted((one.max_model_len for one in listed), key=lambda length: length or math.inf)
        ),
    )


def _most_said(values: Sequence[T]) -> T:
    return Counter(values).most_common(1)[0][0]  # of equally many the first


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
