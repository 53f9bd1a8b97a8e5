"""The base class of the errors that adsum raises on purpose, and the operating system's reason in words (pure)."""

import os
import re
from typing import Final


class AdsumError(Exception):
    """The text is for users: the problem, what was expected, what to do."""


_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


def os_reason(error: BaseException) -> str:
    """Such as "Connection refused". If several addresses were tried, each reason once."""
    cause_of = error.__cause__ or (None if isinstance(error, OSError) else error.__context__)
    cause = cause_of if isinstance(cause_of, OSError) else error
    if numbers := _ERRNO.findall(str(cause)):
        return ", ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers))
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error) or type(error).__name__
