"""Validates the sections of a configuration document with pydantic, and words their errors."""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from adsum.config.problems import Problem, config_error, did_you_mean

M = TypeVar("M", bound=BaseModel)


class ConfigSection(BaseModel):
    """Base class of the parts of a configuration. Types are exact and unknown fields are errors, because a mistyped name
    would otherwise silently mean the default."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


def parsed_by(parse: Callable[[str], object]) -> BeforeValidator:
    """A validator for a field that may also be text, which `parse` converts; it raises ValueError."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def read_section(
    section: type[M], given: Any, place: str, *, secrets: bool = False, context: Any = None
) -> M:
    """Validate `given`; raises ConfigError with all its problems.

    `secrets`: errors quote no values, because they may be secret. `context` is passed to the section's validators.
    """
    try:
        return section.model_validate(given, context=context)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise config_error(_problem(section, fault, place, secrets=secrets) for fault in faults) from error


def describe_fault(fault: ErrorDetails) -> str:
    """The problem, without the value."""
    return (
        "expected a mapping" if fault["type"] == "model_type" else fault["msg"].removeprefix("Value error, ")
    )


def place_of(path: tuple[int | str, ...], start: str = "") -> str:
    """The text of pydantic's `loc`, such as `targets[0].url`, behind `start`."""
    place = start
    for part in path:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    return place


def _problem(section: type[BaseModel], fault: ErrorDetails, place: str, *, secrets: bool) -> Problem:
    path, found = fault["loc"], fault["input"]
    if fault["type"] == "extra_forbidden":
        name = str(path[-1])
        detail = f"unknown field {name[:60]!r}; {_alternatives(name, _known_fields(section, path[:-1]))}"
        return Problem(place_of(path[:-1], place), detail, key=name)
    detail = describe_fault(fault)
    if secrets:
        is_missing = fault["type"] == "missing"
        detail = "it is missing; this field has no default" if is_missing else detail.replace(*_SHORTER)
    elif isinstance(found, str | int | float) and fault["type"] != "value_error":
        detail += f", found {_quoted(found)}"
    return Problem(place_of(path, place), detail)


_SHORTER: Final = ("Input should be", "expected", 1)


def _alternatives(name: str, known: list[str]) -> str:
    all_of_them = f"known: {', '.join(known) or 'none'}"
    near = did_you_mean(name, known)
    return f"{near} {all_of_them}" if near.startswith("did") else all_of_them


def _quoted(found: str | float) -> str:
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _known_fields(section: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The fields of the section at that path."""
    for part in path:
        fields = {field.alias or name: field for name, field in section.model_fields.items()}
        if (field := fields.get(str(part))) is not None:
            section = next(_sections(field.annotation), section)
    return [field.alias or name for name, field in section.model_fields.items()]


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in a field's type: `X`, `X | None`, `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)
