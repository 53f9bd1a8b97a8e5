"""Resource versions compared: integers of up to 128 bit as text, comparable since Kubernetes 1.35 (KEP-5504)."""

from typing import TypeAlias

Age: TypeAlias = tuple[int, str]


def age(version: str) -> Age:
    """Something that orders versions as the server made them: by length, then text. A version that is no integer
    (an aggregated API's own) is older than all and equal to its like.
    """
    return (len(version), version) if version.isascii() and version.isdigit() else (0, "")


def is_older(version: str, than: str) -> bool:
    """Whether `version` is certainly from an earlier moment than `than`."""
    return (0, "") < age(version) < age(than)
