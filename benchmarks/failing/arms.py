"""What the picker and Envoy do about workers that fail."""

from dataclasses import dataclass
from typing import Final

_HEAD: Final = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- type: least-cost-scorer\n"
_OUTLIERS: Final = "outlierDetection: {}\n"


@dataclass(frozen=True, slots=True)
class FailingArm:
    """`fallbacks`: picks name three workers, and Envoy, which knows all by EDS, goes through them. Without, Envoy has one
    attempt. `default`: the picker has no configuration. `outcomes`: of `envoy-config`."""

    name: str
    outliers: bool
    fallbacks: bool
    default: bool = False
    outcomes: str = "ext-proc"

    @property
    def config(self) -> str | None:
        if self.default:
            return None
        count = 3 if self.fallbacks else 1
        picker = f"- {{type: max-score-picker, parameters: {{maxNumOfEndpoints: {count}}}}}\n"
        return _HEAD + picker + (_OUTLIERS if self.outliers else "")


ARMS: Final = (
    FailingArm("neither", outliers=False, fallbacks=False),
    FailingArm("fallbacks", outliers=False, fallbacks=True),
    FailingArm("ejection", outliers=True, fallbacks=False),
    FailingArm("both", outliers=True, fallbacks=True),
    FailingArm("default", outliers=True, fallbacks=True, default=True, outcomes="auto"),
    FailingArm("default, ext-proc", outliers=True, fallbacks=True, default=True),
)
