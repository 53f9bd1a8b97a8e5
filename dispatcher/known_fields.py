"""A mapping of a file in which every field is known: a name that is mistyped must not be a default in silence."""

from pydantic import BaseModel


def only_known(model: type[BaseModel], given: object) -> object:
    """What was given; ValueError with the name that is not known, and those that are."""
    known = list(model.model_fields)
    for name in given if isinstance(given, dict) else ():
        if name not in known:
            raise ValueError(f"unknown field {name!r}; known: {', '.join(known) or 'none'}")
    return given
