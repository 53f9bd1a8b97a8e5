"""What an installed package declares to add a plugin type; packages import it from `epp.extension`."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from epp.config.catalogue import Role
from epp.config.document import Section
from epp.config.parameters import NoParameters
from epp.flow_control.fairness_policy import FairnessPolicy
from epp.flow_control.ordering_policy import OrderingPolicy
from epp.flow_control.usage_limit_policy import UsageLimitPolicy
from epp.scheduling.plugin import DataProducer, Filter, Picker, ProfileHandler, Scorer

P = TypeVar("P")

BuiltPlugin: TypeAlias = (
    Filter
    | Scorer
    | Picker
    | ProfileHandler
    | DataProducer
    | FairnessPolicy
    | OrderingPolicy
    | UsageLimitPolicy
)


class PluginContext(Protocol):
    """What a plugin can use while it is built."""

    @property
    def rng(self) -> random.Random:
        """The source of seeds."""

    def producer(self, name: str, expected: type[P]) -> P:
        """The data producer of that name, which then prepares every request. If the file lists none, the name is a type.

        Raises ValueError if there is none, or if it is not an `expected`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDeclaration:
    """One plugin type.

    `build` is called once for each plugin of the file, with its parameters and a PluginContext, and again only when these
    change; a ValueError is reported as an error in the parameters. `parameters`: a Section, whose fields are camelCase in the file; a picker's derive
    from PickerParameters. `reads_metrics`: a scorer reads the workers' metrics, so endpoints with stale numbers are
    ranked last.
    """

    role: Role
    build: Callable[[Any, PluginContext], BuiltPlugin]
    parameters: type[Section] = NoParameters
    reads_metrics: bool = True
