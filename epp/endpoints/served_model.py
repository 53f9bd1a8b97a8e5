"""The models that a worker names in its answer to `GET /v1/models`, in OpenAI's form. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

_MAX_MODELS: Final = 1024
_MAX_NAME: Final = 512
"""Characters of a model's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model or LoRA adapter. `created`: seconds since 1970, 0: unknown.

    vLLM's additions: `root`, what is loaded under this name; `parent`, the base model of an adapter.
    """

    id: str
    created: int = 0
    owned_by: str = ""
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


def read_model_list(body: bytes | bytearray) -> tuple[ServedModel, ...]:
    """The models of an answer, each name once. Raises ValueError if it is not a list of models, or is too long.

    Fields besides `id` may be absent; those of the wrong type count as absent.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(map(_is_model, entries)):
        raise ValueError('not a list of models, expected {"data": [{"id": ...}, ...]}')
    if len(entries) > _MAX_MODELS:
        raise ValueError(f"more than {_MAX_MODELS} models")
    models: dict[str, ServedModel] = {}
    for entry in entries:
        models.setdefault(entry["id"], _model(entry))
    return tuple(models.values())


def _is_model(entry: object) -> bool:
    name = entry.get("id") if isinstance(entry, dict) else None
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME


def _model(entry: Mapping[str, Any]) -> ServedModel:
    return ServedModel(
        id=entry["id"],
        created=_count(entry.get("created")) or 0,
        owned_by=_name(entry.get("owned_by")) or "",
        root=_name(entry.get("root")),
        parent=_name(entry.get("parent")),
        max_model_len=_count(entry.get("max_model_len")),
    )


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_NAME else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
