"""The operating system's reason for a failure as text, without errno (pure)."""

import os
import re
from typing import Final

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
