"""Finds what each field of a pydantic model means: the docstring that stands under it in the source."""

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic import BaseModel


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """By the field's name; a field without a docstring has the one of the class that it is inherited from."""
    told: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if one is not BaseModel and issubclass(one, BaseModel):
            told |= _of_class(one)
    return told


def _of_class(model: type[BaseModel]) -> dict[str, str]:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body = parsed.body if isinstance(parsed, ast.ClassDef) else []
    told: dict[str, str] = {}
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    told[field.target.id] = " ".join(text.split())
    return told
