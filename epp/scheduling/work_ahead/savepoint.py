"""Keeps what a rehearsed pick changes, and puts it back."""

from copy import copy


class Savepoint:
    """Keeps attributes as they are now."""

    def __init__(self) -> None:
        self._kept: list[tuple[object, str, object]] = []

    def keep(self, one: object, *names: str) -> None:
        """These attributes of it; collections are copied."""
        self._kept += [(one, name, copy(getattr(one, name))) for name in names]

    def restore(self) -> None:
        """Make all that was kept what it was."""
        for one, name, value in self._kept:
            setattr(one, name, value)
