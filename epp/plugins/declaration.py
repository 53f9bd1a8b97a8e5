"""The declaration of a plugin type. Installed packages import it from `epp.extension` (docs/extending.md)."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from epp.endpoints.worker_metrics import WorkerMetric
from epp.plugins.section import NoParameters, Section

if TYPE_CHECKING:
    from prometheus_client import Metric

P = TypeVar("P")
S = TypeVar("S", bound=Section)


class Role(Enum):
    """A reference in the file may use a plugin as one of these."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    HANDLER = "profile handler"
    DETECTOR = "saturation detector"
    SOURCE = "data source"
    EXTRACTOR = "extractor"
    DISCOVERY = "discovery"
    PARSER = "parser"
    FAIRNESS = "fairness policy"
    ORDERING = "ordering policy"
    USAGE_LIMIT = "usage limit policy"
    EVICTION = "eviction policy"
    PRODUCER = "data producer"
    SCREENER = "screener"
    ADMITTER = "admitter"
    DECIDER = "decider"
    REQUEST_HEADERS = "request header processor"
    RESPONSE_HEADERS = "response header processor"

    @property
    def with_article(self) -> str:
        return f"{'an' if self.value[0] in 'aeio' else 'a'} {self.value}"


class ParameterError(ValueError):
    """A parameter cannot be used; `field`: its name in the file, with the way to it (`sessionIdConfig.sources[0]`)."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


class PluginContext(Protocol):
    """The parts that a plugin can use while it is built. A plugin is built again only if what it used here changed."""

    @property
    def rng(self) -> random.Random:
        """The source of seeds."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, which never go back."""

    @property
    def processes(self) -> int:
        """How many processes of the picker share the machine's memory, each with plugins of its own."""

    @property
    def name(self) -> str:
        """The plugin's name in the file."""

    @property
    def profiles(self) -> Sequence[str]:
        """The names of the file's profiles."""

    def producer(self, name: str | None, expected: type[P], *, default: str = "", field: str = "") -> P:
        """The data producer of that name, which then prepares every request. If the file lists none, the name is a type.

        Without a name it is the file's first of the type `default`, else a new one of that type. `field`: the parameter that
        has the name, for errors. Raises ValueError if there is none, or if it is not an `expected`.
        """

    def parameters(
        self, name: str | None, expected: type[S], *, default: str = "", field: str = ""
    ) -> S | None:
        """The parameters of another plugin, found as by `producer`; without a name and a plugin of the type `default`, None."""

    def metric(self, key: str, producer: str | None, *, field: str) -> WorkerMetric:
        """The number of a worker's page that `customMetrics` names so. Raises ValueError if there is none."""

    def is_wanted(self, type: str, field: str) -> bool:
        """Whether the file lists a plugin of that type, or one that would bring it: with this parameter (`snake_case`), empty."""

    def shared(self, kind: type[P], part: object, build: Callable[[], P]) -> P:
        """Share one object with all plugins that name the same `part`; `build` makes it once."""

    def follow(self, follower: Any) -> None:
        """Let a `DataProducer` learn of every request, whichever profile runs, if the plugin is used."""

    def set_response_headers(self, headers: Any) -> None:
        """Let a function from the pick and who served it set headers of each answer (`ResponseHeaders`), if the plugin is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDeclaration:
    """One plugin type.

    `build` is called once for each plugin of the file, with its parameters and a PluginContext, and again only when these
    change; a ValueError is reported as an error in the parameters, a ParameterError with its field. `parameters`: a Section,
    whose fields are camelCase in the file; a picker's derive from PickerParameters. `reads_metrics`: a scorer reads the
    workers' metrics, so endpoints with stale numbers are ranked last. `type`: the name in the file; of an installed package,
    the name of the entry point. `also`: a second role. `read_by_handlers`: of a data producer that profile handlers may read,
    so that it runs where one decides. `single`: why a file can use only one, if that is so. `is_default`: of built-in types,
    what a file gets that names none of the role. `unread_warning`: the rest of a warning about a data producer that is listed
    and that no plugin of a profile reads. `flow_control_limit`: what it does not do where flow control is on, as the rest of a
    warning that begins with its type. `warnings`: what to say when the file is read, such as what the plugin lacks. `metrics`:
    from all plugins of the type that are in use, what the metrics page has of them.
    """

    role: Role
    build: Callable[[Any, PluginContext], object]
    parameters: type[Section] = NoParameters
    reads_metrics: bool = True
    type: str = ""
    also: Role | None = None
    read_by_handlers: bool = False
    single: str = ""
    is_default: bool = False
    flow_control_limit: str = ""
    warnings: Callable[[Any, PluginContext], Iterable[str]] = lambda given, context: ()
    unread_warning: str = ""
    metrics: Callable[[Any], Iterable["Metric"]] = lambda plugins: ()

    @property
    def roles(self) -> frozenset[Role]:
        return frozenset({self.role} if self.also is None else {self.role, self.also})


def without_parameters(
    type: str, role: Role, build: Callable[[], object], *, is_default: bool = False
) -> PluginDeclaration:
    """A type that takes no parameters and needs no other plugin."""
    return PluginDeclaration(
        type=type, role=role, build=lambda given, context: build(), is_default=is_default
    )


def only_parameters(
    type: str, role: Role, parameters: type[Section] = NoParameters, **others: Any
) -> PluginDeclaration:
    """A type that is its parameters: other parts of the picker read them, or call them. `others`: of its declaration."""
    return PluginDeclaration(
        type=type, role=role, parameters=parameters, build=lambda given, context: given, **others
    )
