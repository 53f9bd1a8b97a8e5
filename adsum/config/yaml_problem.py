"""Words the error of a YAML parser in one line. Does not import PyYAML, which is an extra (pure)."""

import re
from typing import Final

_QUOTED: Final = re.compile(r"""(['"])(?!<).{2,}\1""", re.DOTALL)
"""A quoted alias or tag in PyYAML's text: a password that begins with * or ! is parsed as one and would be shown."""


def yaml_problem(error: Exception, *, secrets: bool = False) -> str:
    """One line with the position. `secrets`: quotes nothing from the file."""
    problem = getattr(error, "problem", None) or getattr(error, "context", None)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if problem and mark is not None:
        said = _QUOTED.sub("...", problem) if secrets else problem
        return f"{said} in line {mark.line + 1}, column {mark.column + 1}"
    if secrets:
        return "it has an invalid character, date or number, or is nested too deeply"
    return " ".join(str(error).split()) or type(error).__name__
