"""How an installed package declares a plugin type of the picker; packages import it from `epp.extension`."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from epp.config.catalogue import Role
from epp.config.document import Section
from epp.config.parameters import NoParameters
from epp.scheduling.plugin import DataProducer, Filter, Picker, ProfileHandler, Scorer

P = TypeVar("P")

BuiltPlugin: TypeAlias = Filter | Scorer | Picker | ProfileHandler | DataProducer


class PluginContext(Protocol):
    """What a plugin may ask for while it is built."""

    @property
    def rng(self) -> random.Random:
        """Where plugins take seeds from."""

    def producer(self, name: str, expected: type[P]) -> P:
        """The data producer of that name, which then prepares every request; one that the file does not list stands for
        its type. Raises ValueError where there is none, or it is not an `expected`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDeclaration:
    """One plugin type.

    `build` is called once for each plugin of the file, with its parameters and a PluginContext; a ValueError is shown as
    a mistake in the parameters. `parameters`: a Section, whose fields are camelCase in the file; those of a picker
    derive from PickerParameters. `reads_metrics`: a scorer reads what is scraped from the workers, so endpoints whose
    numbers are stale come last.
    """

    role: Role
    build: Callable[[Any, PluginContext], BuiltPlugin]
    parameters: type[Section] = NoParameters
    reads_metrics: bool = True
