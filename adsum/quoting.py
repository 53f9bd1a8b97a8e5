"""Quotes untrusted text for errors and logs (pure)."""


def quoted(text: str, max_length: int = 40) -> str:
    """The text's repr, cut to `max_length` characters: line breaks and control characters cannot forge log lines."""
    return repr(text if len(text) <= max_length else f"{text[:max_length]}...")


def printable(text: str, max_length: int) -> str:
    """The text itself, cut, with control characters escaped: for names that are shown in terminals and logs."""
    shown = text if len(text) <= max_length else f"{text[:max_length]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
