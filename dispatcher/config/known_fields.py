"""A mapping of a file in which every field is known: a name that is mistyped must not be a default in silence."""

from pydantic import BaseModel, ValidationError


def only_known(model: type[BaseModel], given: object) -> object:
    """What was given; ValueError with the name that is not known, and those that are."""
    known = list(model.model_fields)
    for name in given if isinstance(given, dict) else ():
        if name not in known:
            raise ValueError(f"unknown field {name!r}; known: {', '.join(known) or 'none'}")
    return given


def first_fault(error: ValidationError) -> tuple[tuple[int | str, ...], str]:
    """Where the first fault is and what is wrong there, without the value, which may be a secret."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "missing":
        return first["loc"], "it is missing; this field has no default"
    said = first["msg"].removeprefix("Value error, ")
    return first["loc"], said.replace("Input should be", "expected", 1)
