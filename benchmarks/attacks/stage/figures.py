"""What an attack changed, printed in a table: before it, and while or after it ran."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figures:
    """`rows`: what was measured, before the attack, under it."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, what: str, before: object, under: object) -> None:
        """One measurement; numbers come with their unit, as text."""
        self.rows.append((what, str(before), str(under)))

    def __str__(self) -> str:
        table = [("", "before", "under attack"), *self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(3)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table
        )
        return "\n".join(line.rstrip() for line in lines)
