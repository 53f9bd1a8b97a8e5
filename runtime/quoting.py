"""Quotes untrusted text for errors and logs (pure)."""


def quoted(text: str, max_length: int = 40) -> str:
    """The text's repr, cut to `max_length` characters: line breaks and control characters cannot forge log lines."""
    return repr(text if len(text) <= max_length else f"{text[:max_length]}...")
