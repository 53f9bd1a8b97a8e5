"""Why something could not be done, in the operating system's words and without its numbers (pure)."""

import os
import re
from typing import Final

_NUMBERED: Final = re.compile(r"\[Errno (\d+)\]")


def os_reason(error: BaseException) -> str:
    """In words: "Connection refused"; each reason once where several addresses were tried."""
    under = error.__cause__ or (None if isinstance(error, OSError) else error.__context__)
    cause = under if isinstance(under, OSError) else error
    if numbers := _NUMBERED.findall(str(cause)):
        return ", ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers))
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error) or type(error).__name__
