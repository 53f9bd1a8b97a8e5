"""The names of the metrics' labels, and values that a client may not choose freely. Pure."""

import re
from typing import Final, TypeAlias

PREFIX: Final = "llm_d_epp_"
OBJECTIVE_PREFIX: Final = "inference_objective_"
"""The older names of the metrics of requests."""
EXTENSION_PREFIX: Final = "inference_extension_"
"""The older names of those of the scheduler, of waiting requests and of plugins."""
POOL_PREFIX: Final = "inference_pool_"
"""The older names of the pool's."""
REQUEST_LABELS: Final = ("model_name", "target_model_name", "fairness_id", "priority")
RequestLabels: TypeAlias = tuple[str, str, str, str]
"""The values of REQUEST_LABELS."""
OTHER: Final = "other"
_MAX_LABEL: Final = 256
"""Characters."""

# Control characters, Unicode's line and paragraph separators, and lone surrogates, which UTF-8 cannot encode. The text
# format 0.0.4 escapes the newline, the backslash and the quote only, but some parsers split lines at the others: a client
# could inject samples.
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def label_value(value: str) -> str:
    """A client's text as the value of a label: without characters that end a line; `OTHER` if it is too long."""
    if len(value) > _MAX_LABEL:
        return OTHER
    return value if value.isprintable() else _UNSAFE.sub("", value)
