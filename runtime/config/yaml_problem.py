"""What a parser of YAML found, in words; without PyYAML, which is an extra (pure)."""

import re
from typing import Final

_QUOTED: Final = re.compile(r"""(['"])(?!<).{2,}\1""", re.DOTALL)
"""An alias or a tag in a text of YAML's: what was meant for a password that begins with * or !."""


def yaml_problem(error: Exception, *, secrets: bool = False) -> str:
    """One line, without the lines of the file. `secrets`: without any word of it."""
    problem = getattr(error, "problem", None) or getattr(error, "context", None)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if problem and mark is not None:
        said = _QUOTED.sub("...", problem) if secrets else problem
        return f"{said} in line {mark.line + 1}, column {mark.column + 1}"
    if secrets:
        return "a character, a date or a number in it is none, or it is nested too deep"
    return " ".join(str(error).split()) or type(error).__name__
