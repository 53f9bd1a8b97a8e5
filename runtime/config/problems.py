"""Collects the problems of a configuration, each with its place, into one error (pure)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """`place`: such as `targets[0].url`. `detail`: what was found and what was expected. `line`: in the file, None if it
    is unknown. `key`: the key at that place that the problem is about.
    """

    place: str
    detail: str
    line: int | None = None
    key: str = ""

    def __str__(self) -> str:
        told = f"{self.place}: {self.detail}" if self.place else self.detail
        return told if self.line is None else f"line {self.line}: {told}"


class ConfigError(ValueError):
    """The configuration is invalid. `problems` is empty if all of them were reported before."""

    def __init__(
        self, place: str, detail: str, *, problems: tuple[Problem, ...] | None = None, file: str = ""
    ) -> None:
        self.problems = (Problem(place, detail),) if problems is None else problems
        self._file = f"{file}: " if file else ""
        told = [str(problem) for problem in self.problems]
        text = told[0] if len(told) == 1 else "\n  ".join((f"{len(told)} problems:", *told))
        super().__init__(self._file + text)

    def in_file(self, file: object) -> "ConfigError":
        """The same error with the file's name before its text."""
        return ConfigError("", "", problems=self.problems, file=str(file))

    @property
    def one_line(self) -> str:
        """The text without line breaks, for a log."""
        return self._file + "; ".join(map(str, self.problems))


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

    def error(self, line: Callable[[str], int | None] = lambda place: None) -> ConfigError:
        """The error for all problems, in the order of the file. `line` returns the line of a place."""
        found = [replace(one, line=line(f"{one.place}.{one.key}")) for one in dict.fromkeys(self._found)]
        return config_error(sorted(found, key=lambda problem: problem.line or 0))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint for a mistyped name: the closest of the known names, else all of them."""
    import difflib  # needed for a mistyped name only

    names = sorted(known)
    near = difflib.get_close_matches(name[:100], names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names) or 'none'}"
