"""What an operator says about all exchanges of a picker."""

from dataclasses import dataclass
from enum import StrEnum


class ProtocolVersion(StrEnum):
    """The versions of the endpoint picker protocol that differ on the wire."""

    V1_0 = "1.0.0"
    V0_3 = "0.3.0"
    FEBRUARY_2025 = "2025-02"


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """What all exchanges of a picker have in common; `max_body_bytes` is what one request may make it hold.

    `use_subset_hint` False: the data plane's hint which endpoints may be picked is not looked at.
    """

    version: ProtocolVersion = ProtocolVersion.V1_0
    max_body_bytes: int = 64 * 1024 * 1024
    use_subset_hint: bool = True

    @property
    def reads_subset_hint(self) -> bool:
        """Whether a subset hint counts; in 2025-02 there was none."""
        return self.use_subset_hint and self.version is not ProtocolVersion.FEBRUARY_2025
