"""What is wrong with a configuration: each problem with its place, and all of them at once (pure)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """`said`: what was found there and what could stand there. `line`: of the file, None where it is not known.

    `key`: which key of the place it is about.
    """

    place: str
    said: str
    line: int | None = None
    key: str = ""

    def __str__(self) -> str:
        told = f"{self.place}: {self.said}" if self.place else self.said
        return told if self.line is None else f"line {self.line}: {told}"


class ConfigError(ValueError):
    """The configuration is not sound. `problems` is empty where what is missing was told already."""

    def __init__(
        self, place: str, said: str, *, problems: tuple[Problem, ...] | None = None, file: str = ""
    ) -> None:
        self.problems = (Problem(place, said),) if problems is None else problems
        self._file = f"{file}: " if file else ""
        told = [str(problem) for problem in self.problems]
        text = told[0] if len(told) == 1 else "\n  ".join((f"{len(told)} problems:", *told))
        super().__init__(self._file + text)

    def of_file(self, file: object) -> "ConfigError":
        """The same, its text led by the file's name."""
        return ConfigError("", "", problems=self.problems, file=str(file))

    @property
    def one_line(self) -> str:
        """The text for a log."""
        return self._file + "; ".join(map(str, self.problems))


def config_error(problems: Iterable[Problem]) -> ConfigError:
    """One error for all of them."""
    return ConfigError("", "", problems=tuple(problems))


class Problems:
    """Collects them, so that one does not hide the next."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, place: str, said: str) -> None:
        self._found.append(Problem(place, said))

    def of(self, read: Callable[[], T]) -> T | None:
        """What `read` returns; None where it raises ConfigError, whose problems are kept."""
        try:
            return read()
        except ConfigError as error:
            self._found.extend(error.problems)
            return None

    def error(self, line: Callable[[str], int | None] = lambda place: None) -> ConfigError:
        """All of them in the order of the file; `line` finds a place there."""
        found = [replace(one, line=line(f"{one.place}.{one.key}")) for one in dict.fromkeys(self._found)]
        return config_error(sorted(found, key=lambda problem: problem.line or 0))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not among `known`: the nearest one, or what there is."""
    import difflib  # for who mistyped only

    names = sorted(known)
    near = difflib.get_close_matches(name[:100], names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names) or 'none'}"
