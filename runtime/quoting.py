"""Foreign text in an error: quoted, and cut where it is long (pure)."""

_LONGEST = 40
"""Characters."""


def quoted(text: str) -> str:
    """As Python writes it, on one line."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
