"""A table of what an attack changed: the figures before it, and while or after it ran."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figures:
    """`rows`: the name of a figure, its value before the attack, its value under it."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, what: str, before: object, under: object) -> None:
        """Adds a row; values are text with their unit."""
        self.rows.append((what, str(before), str(under)))

    def __str__(self) -> str:
        table = [("", "before", "under attack"), *self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(3)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table
        )
        return "\n".join(line.rstrip() for line in lines)
