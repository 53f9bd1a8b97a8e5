"""Foreign text in an error: quoted, and cut where it is long (pure)."""


def quoted(text: str, longest: int = 40) -> str:
    """As Python writes it, on one line; no more than `longest` characters of it."""
    return repr(text if len(text) <= longest else f"{text[:longest]}...")
