"""The sections of a configuration document, and what is wrong with one in words."""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from runtime.config.problems import Problem, config_error, did_you_mean

M = TypeVar("M", bound=BaseModel)


class ConfigSection(BaseModel):
    """Part of a configuration: exact types, and no field that is not known: a mistyped name is no default in silence."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


def parsed_by(parse: Callable[[str], object]) -> BeforeValidator:
    """For a field that may also be text: `parse` reads it and raises ValueError; what is no text is left to the type."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def read_section(
    section: type[M], given: Any, place: str, *, secrets: bool = False, context: Any = None
) -> M:
    """`given` as that section; raises ConfigError with all that is wrong with it.

    `secrets`: no value is quoted, since it may be one. `context` is for the section's validators.
    """
    try:
        return section.model_validate(given, context=context)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise config_error(_problem(section, fault, place, secrets=secrets) for fault in faults) from error


def in_words(fault: ErrorDetails) -> str:
    """What is wrong, without the value."""
    return (
        "expected a mapping" if fault["type"] == "model_type" else fault["msg"].removeprefix("Value error, ")
    )


def place_of(path: tuple[int | str, ...], start: str = "") -> str:
    """`targets[0].url`, behind `start`."""
    place = start
    for part in path:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    return place


def _problem(section: type[BaseModel], fault: ErrorDetails, place: str, *, secrets: bool) -> Problem:
    path, found = fault["loc"], fault["input"]
    if fault["type"] == "extra_forbidden":
        name = str(path[-1])
        said = f"unknown field {name[:60]!r}; {_instead(name, _known_fields(section, path[:-1]), listed=secrets)}"
        return Problem(place_of(path[:-1], place), said, key=name)
    said = in_words(fault)
    if secrets:
        is_missing = fault["type"] == "missing"
        said = "it is missing; this field has no default" if is_missing else said.replace(*_TERSE)
    elif isinstance(found, str | int | float) and fault["type"] != "value_error":
        said += f", found {_shown(found)}"
    return Problem(place_of(path, place), said)


_TERSE: Final = ("Input should be", "expected", 1)


def _instead(name: str, known: list[str], *, listed: bool) -> str:
    near = did_you_mean(name, known)
    if near.startswith("did") and not listed:
        return near
    return f"known: {', '.join(known) or 'none'}"


def _shown(found: str | float) -> str:
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _known_fields(section: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Of the section that stands at that path."""
    for part in path:
        fields = {field.alias or name: field for name, field in section.model_fields.items()}
        if (field := fields.get(str(part))) is not None:
            section = next(_sections(field.annotation), section)
    return [field.alias or name for name, field in section.model_fields.items()]


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Those that a field's type names: `X`, `X | None`, `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)
