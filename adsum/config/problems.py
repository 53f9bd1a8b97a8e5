"""Collects the problems of a configuration, each with its place, into one error, also what a YAML parser says (pure)."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

T = TypeVar("T")

_MAX_QUOTE: Final = 80
"""Characters of a line that are shown."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`place`: such as `targets[0].url`. `detail`: what was found and what was expected. `line`: in the file, None if it
    is unknown. `key`: the key at that place that the problem is about. `text`: of that line, empty if it may be secret.
    """

    place: str
    detail: str
    line: int | None = None
    key: str = ""
    text: str = ""

    def __str__(self) -> str:
        told = f"{self.place}: {self.detail}" if self.place else self.detail
        return told if self.line is None else f"line {self.line}: {told}"

    @property
    def with_text(self) -> str:
        """The problem, and below it the text of its line."""
        text = self.text.strip()[:_MAX_QUOTE]
        return (
            f"{self}\n    {self.line} | {text if text.isprintable() else repr(text)}" if text else str(self)
        )


class ConfigError(ValueError):
    """The configuration is invalid. `problems` is empty if all of them were reported before."""

    def __init__(
        self, place: str, detail: str, *, problems: tuple[Problem, ...] | None = None, file: str = ""
    ) -> None:
        self.problems = (Problem(place, detail),) if problems is None else problems
        self._file = f"{file}: " if file else ""
        super().__init__(self._text(str(problem) for problem in self.problems))

    def in_file(self, file: object) -> "ConfigError":
        """The same error with the file's name before its text."""
        return ConfigError("", "", problems=self.problems, file=str(file))

    @property
    def one_line(self) -> str:
        """The text without line breaks, for a log."""
        return self._file + "; ".join(map(str, self.problems))

    @property
    def with_lines(self) -> str:
        """The text for a terminal: below each problem the line that it is about."""
        return self._text(problem.with_text for problem in self.problems)

    def _text(self, problems: Iterable[str]) -> str:
        told = list(problems)
        text = told[0] if len(told) == 1 else "\n  ".join((f"{len(told)} problems:", *told))
        return self._file + text


def config_error(problems: Iterable[Problem]) -> ConfigError:
    return ConfigError("", "", problems=tuple(problems))


class Problems:
    """Collects problems, so that the first one does not hide the others."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, place: str, detail: str) -> None:
        self._found.append(Problem(place, detail))

    def of(self, read: Callable[[], T]) -> T | None:
        """Call `read`; None if it raises ConfigError, whose problems are added."""
        try:
            return read()
        except ConfigError as error:
            self._found.extend(error.problems)
            return None

    def error(
        self,
        line: Callable[[str], int | None] = lambda place: None,
        text: Callable[[int | None], str] = lambda number: "",
    ) -> ConfigError:
        """The error for all problems, in the order of the file. `line` returns the line of a place, `text` what it says."""
        found = []
        for one in dict.fromkeys(self._found):
            number = line(f"{one.place}.{one.key}")
            found.append(replace(one, line=number, text=text(number)))
        return config_error(sorted(found, key=lambda problem: problem.line or 0))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint for a mistyped name: the closest of the known names, else all of them."""
    import difflib  # needed for a mistyped name only

    names = sorted(known)
    near = difflib.get_close_matches(name[:100], names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names) or 'none'}"


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
    # bounded: a message of the YAML reader
    return " ".join(str(error).split()) or type(error).__name__
