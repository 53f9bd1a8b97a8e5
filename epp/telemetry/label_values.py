"""What strangers say of themselves as the value of a metric's label. Pure."""

import re
from typing import Final

LONGEST: Final = 256
"""Characters."""
OTHER: Final = "other"

# Control characters, what Unicode takes for the end of a line or a paragraph, and halves of pairs, which no UTF-8 has. The
# text format escapes the newline only (0.0.4), but some who read it take these for the end of a line: behind one a
# client could write samples of its own.
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def shown(value: str) -> str:
    """The value without what does not belong into one line; one that is too long is `OTHER`."""
    if len(value) > LONGEST:
        return OTHER
    return value if value.isprintable() else _UNFIT.sub("", value)
