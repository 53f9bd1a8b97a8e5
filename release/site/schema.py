"""The reference of the configuration files, from the pydantic models that read them."""

import html
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dispatcher.config.config_file import Config
from dispatcher.gates.catalogue import GATES
from epp.config.catalogue import PLUGINS
from epp.config.document import ConfigDocument, Ref
from release.site.field_meanings import meanings

_WRITTEN: Final = {
    "parse_go_duration": "duration",
    "parse_duration": "duration",
    "parse_quantity": "quantity",
    "parse_size": "size",
}
"""A field whose text one of these parses holds this."""
_PLAIN: Final = {str: "text", int: "integer", float: "number", bool: "true or false", Fraction: "number"}
_LOWER: Final = ((annotated_types.Ge, "ge", "≥"), (annotated_types.Gt, "gt", ">"))
_UPPER: Final = ((annotated_types.Le, "le", "≤"), (annotated_types.Lt, "lt", "<"))
_LENGTHS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
"""Units of durations in milliseconds; Go knows no days, and one day is 24h to most readers."""
_BYTES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_LARGE: Final = 2**53
"""Bounds beyond are those of the machine, and say nothing to a reader."""


def picker_file() -> str:
    """Markdown: the sections of an `EndpointPickerConfig`, then the parameters of each plugin type."""
    parts = [*_sections("", ConfigDocument, level=2), "## Parameters of plugins"]
    parts.append(
        "Types that are not listed have no parameters. Their roles say where the file may name them."
    )
    for name, kind in sorted(PLUGINS.items()):
        if kind.parameters.model_fields:
            roles = ", ".join(sorted(role.value for role in kind.roles))
            parts += [f"### {name}", f"Roles: {roles}.", *_parameters(name, kind.parameters)]
    return "\n\n".join(parts)


def dispatcher_file() -> str:
    """Markdown: the sections of the dispatcher's file, then the parameters of each gate."""
    parts = [*_sections("", Config, level=2), "## Parameters of gates"]
    for name, parameters in GATES.items():
        if parameters.model_fields:
            parts += [f"### {name}", *_parameters(name, parameters)]
    return "\n\n".join(parts)


def _sections(place: str, model: type[BaseModel], level: int) -> Iterator[str]:
    yield f"{'#' * level} {place or 'The file'}"
    yield from _body(model, lambda path: _anchor(f"{place}.{path}".removeprefix(".")))
    for path, inner in _inner(model):
        yield from _sections(f"{place}.{path}".removeprefix("."), inner, level + (level < 3))


def _parameters(plugin: str, model: type[BaseModel], place: str = "") -> Iterator[str]:
    """Yield the sections of one type, then the sections within them."""
    yield from _body(model, lambda path: _anchor(f"{plugin}: {place}{path}"))
    for path, inner in _inner(model):
        yield f"#### {plugin}: {place}{path}"
        yield from _parameters(plugin, inner, f"{place}{path}.")


def _inner(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections in the fields of a model, by where they stand, `[]` for each of a list; not those without fields."""
    for name, field in model.model_fields.items():
        for inner in _models(field.annotation):
            if inner is not Ref and inner.model_fields:
                yield _path(name, field), inner


def _path(name: str, field: FieldInfo) -> str:
    return _written_name(name, field) + ("[]" if get_origin(field.annotation) is list else "")


def _anchor(heading: str) -> str:
    """As the site's slugify makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _body(model: type[BaseModel], anchor_of: Callable[[str], str]) -> Iterator[str]:
    """`anchor_of`: of the section in a field, by its path within this model."""
    if about := model.__dict__.get("__doc__"):
        yield _plain(_with_written_names(inspect.cleandoc(about), model))
    told = meanings(model)
    rows = []
    for name, field in model.model_fields.items():
        kind = _type(field.annotation, field.metadata)
        sections = [inner for inner in _models(field.annotation) if inner is not Ref and inner.model_fields]
        if sections:
            kind = re.sub("sections?", rf"[\g<0>](#{anchor_of(_path(name, field))})", kind)
        about = " · ".join(part for part in (kind, _default(field)) if part)
        meaning = _plain(told.get(name, "")).replace("|", "\\|")
        rows.append(f"| `{_written_name(name, field)}` | <small>{about}</small><br>{meaning} |")
    if rows:
        yield "\n".join(["| field | meaning |", "|---|---|", *rows])


def _with_written_names(text: str, model: type[BaseModel]) -> str:
    """Docstrings name fields as the code does."""
    for name, field in model.model_fields.items():
        text = text.replace(f"`{name}`", f"`{_written_name(name, field)}`")
    return text


def _written_name(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The sections within a field, each once."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is dict:
        return []
    return list(dict.fromkeys(model for part in get_args(annotation) for model in _models(part)))


def _type(annotation: Any, metadata: list[Any]) -> str:
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if origin is Annotated:
        return _type(parts[0], [*parts[1:], *metadata])
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part, metadata) for part in parts if part is not type(None))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in parts if value != "")  # Go writes "" for the default
    if origin in (list, tuple):
        return f"list of {_type(parts[0], [])}".replace("section", "sections")
    if origin is dict:
        return f"mapping of names to {_type(parts[1], [])}"
    written = _parsed(metadata)
    return (written or _kind(annotation)) + _bounds(metadata, written)


def _kind(annotation: Any) -> str:
    if annotation is Ref:
        return "`{pluginRef: NAME}`"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    return _PLAIN.get(annotation, "any value")


def _parsed(metadata: list[Any]) -> str | None:
    """How the text is written that a validator of `parsed_by` converts."""
    for one in metadata:
        if isinstance(one, BeforeValidator):
            parse = inspect.getclosurevars(one.func).nonlocals.get("parse")
            if written := _WRITTEN.get(getattr(parse, "__name__", "")):
                return written
    return None


def _bounds(metadata: list[Any], written: str | None) -> str:
    """The strictest lower and upper bound, as `≥ 1s, ≤ 15s`."""
    found = ""
    for bounds, strictest in ((_LOWER, max), (_UPPER, min)):
        given = [
            (float(getattr(one, name)), sign)
            for one in _flat(metadata)
            for kind, name, sign in bounds
            if isinstance(one, kind) and abs(float(getattr(one, name))) < _LARGE
        ]
        if given:
            value, sign = strictest(given)
            found += f", {sign} {_amount(value, written)}"
    return found


def _amount(value: float, written: str | None) -> str:
    """As a reader would write it in the file; durations are given in seconds."""
    units = {"duration": _LENGTHS, "size": _BYTES}.get(written or "", ())
    scaled = value * 1000 if written == "duration" else value
    for unit, size in units:
        if scaled and not scaled % size and (unit != "d" or scaled > size):
            return f"{_number(scaled / size)}{unit}"
    return f"{_number(value)}{'s' if written == 'duration' else ''}"


def _flat(metadata: list[Any]) -> Iterator[Any]:
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from one.metadata
        else:
            yield one


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ({}, [], "", ()) or value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, Enum):
        return f"default `{value.value}`"
    if isinstance(value, Fraction | float) or (isinstance(value, int) and not isinstance(value, bool)):
        return f"default `{_amount(float(value), _parsed_of(field))}`"
    return f"default `{json.dumps(value, default=str) if not isinstance(value, str) else value}`"


def _parsed_of(field: FieldInfo) -> str | None:
    """As `_parsed`, also for the type within `TYPE | None`."""
    parts = [field.metadata, *(list(get_args(part)) for part in get_args(field.annotation))]
    return next((written for part in parts if (written := _parsed(part))), None)


def _number(value: Any) -> str:
    return f"{float(value):.15g}" if float(value) != int(value) else f"{int(value)}"


def _plain(text: str) -> str:
    """Docstrings are Markdown but for what looks like HTML."""
    return html.escape(text, quote=False)
