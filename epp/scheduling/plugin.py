"""The Protocols of scheduling plugins. They work on columns: `pool.waiting[i]` belongs to `pool.endpoints[i]`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from adsum.histogram import Histogram
from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Indices, Key, Mask
from epp.request.inference_request import InferenceRequest, PrefixChain
from epp.scheduling.decision import CacheEvidence, PluginLabels
from epp.scheduling.peer_pick import Fit, PeerPick
from epp.scheduling.pick import Credit, Pick
from epp.scheduling.profile_result import Results
from epp.scheduling.waiting import WaitingRequest

Scores: TypeAlias = Floats | Mapping[int, float]
"""A float64 column, or by row the scores that are not 0."""


class Filter(Protocol):
    """Selects the endpoints that a request may go to."""

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        """True for each endpoint that stays; one bool per endpoint.

        If none stays, the request is answered with 503. A filter that refuses because of load raises `Rejection` (429)
        itself, or keeps all endpoints.
        """


class Scorer(Protocol):
    """Scores each endpoint for a request."""

    @property
    def published_only(self) -> bool:
        """Whether it reads only the numbers and labels that workers publish: not the request, not what is in flight, not
        the age of the numbers. Then it runs once for each state of the pool, not for each request.

        Usually a class attribute. In a test, `epp.scheduling.published_only.check_published_only` finds what else it reads.
        """

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        """One value per endpoint from 0 to 1, 1 is best; other values are clamped, NaN counts as 0."""


@runtime_checkable
class DataProducer(Protocol):
    """Prepares data that scorers and the profile handler read, once per request, and learns how each request ended.

    After `picked` comes `served` or `failed`, once. The first endpoint of a request answers, the others are its
    helpers (`Pick.helpers`).
    """

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Called before the first profile, with all endpoints that may serve the request; may refuse it: raise `Rejection`."""

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """The request goes to these endpoints."""

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """These endpoints served the request with 2xx; the first may be another one than was picked."""

    def failed(self, request: InferenceRequest) -> None:
        """No known endpoint served the request: it was answered with an error, or not at all."""

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        """The endpoint's metrics page has the size of its KV cache in tokens."""

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint's process ended or was replaced: its cache is lost."""

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        """Endpoints were added or removed; these are left."""


@runtime_checkable
class PrefixMatchProducer(DataProducer, Protocol):
    """A data producer that finds matches; `chain` says what it has made of the prompt, None: there is no prompt."""

    def chain(self, request: InferenceRequest) -> PrefixChain | None: ...

    def matches(self, request: InferenceRequest, pool: EndpointPool) -> Mapping[int, int] | Floats:
        """Units of the prompt's beginning that each endpoint holds: by row those of the few that hold any, or a column."""

    def held(self, request: InferenceRequest, endpoint: Endpoint) -> int:
        """Tokens of the prompt's beginning that the endpoint holds."""


@runtime_checkable
class SharingProducer(DataProducer, Protocol):
    """A data producer that learns of other pickers' picks too. For each pick one of the others follows, once."""

    def peers_picked(self, picks: Sequence[PeerPick], pool: EndpointPool) -> None:
        """Another picker's requests go to their endpoints."""

    def peer_served(self, pick: PeerPick) -> None:
        """Its endpoints served it with 2xx; the first may be another one than was picked."""

    def peer_failed(self, pick: PeerPick) -> None:
        """No known endpoint served it."""


@runtime_checkable
class ChainProducer(SharingProducer, Protocol):
    """One whose block hashes other pickers can use."""

    @property
    def layout(self) -> int:
        """64 bits. Equal prompts have equal hashes in two pickers if this is equal."""

    def chain(self, request: InferenceRequest) -> PrefixChain | None: ...

    def use_seed(self, seed: int) -> None:
        """Hash by this one from now on, and forget what was hashed by another one."""


@runtime_checkable
class SharedPrefixProducer(PrefixMatchProducer, ChainProducer, Protocol):
    """One that finds matches from the first pick of a prompt on, whichever picker made it."""


def is_picked_last(producer: DataProducer) -> bool:
    """Whether it hears of a pick after all others, which ask it what an endpoint held before: it has `picked_last = True`."""
    return getattr(producer, "picked_last", False) is True


def producer_labels(producer: DataProducer) -> PluginLabels:
    """A data producer whose time is worth a metric names its type by `plugin_type`."""
    kind = str(getattr(producer, "plugin_type", ""))
    return "DataProducer", kind, kind


@runtime_checkable
class ArrivalFollower(Protocol):
    """A data producer that may refuse a request already when it comes to wait."""

    def arrived(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """It cannot go at once. Raises `Rejection`: it is refused, and does not wait."""


class AdmissionController(Protocol):
    """Decides when a request is scheduled, and keeps the order of those that wait. It has no timer and no clock.

    All calls come from one event loop, one after the other. A request that `admit` lets wait is given to `enqueue` at
    once, and is out of the queue when the admission dispatches, refuses or expires it (see `WaitingRequest`) or when
    `withdraw` says that it left. An error of `admit` or `enqueue` goes to the client of that request, a `Rejection` as its
    answer; one of `dispatch` to the clients of all that wait.

    `SaturationDetector` reads what workers publish, so it does not see what one turn of `dispatch` has already sent. To
    dispatch several at once, count them, or read `EndpointPool.unreported`.
    """

    @property
    def waits_for_endpoints(self) -> bool:
        """Whether requests wait while there is no endpoint: `enqueue` without `admit`. Otherwise they are refused."""

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        """True: schedule the request now among the candidates. False: it waits. Raises `Rejection`: it is refused."""

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        """Answer as `admit` would, and raise where it would wait and be refused; without any effect."""

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        """Raise what `enqueue` would raise; without any effect."""

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        """Queue a request. May refuse others to make room for it, but dispatches none."""

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        """Remove a request: its client left, or the picker drains and has answered it."""

    def dispatch(self, now: float) -> float | None:
        """Dispatch the requests that may go now; refuse or expire those that must not wait longer.

        Called soon after a request came to wait, after a request was released or a load changed while one waits, and at
        the time that was returned last: when it is to be called at the latest, in seconds of `now`; None: no need.
        """

    def close(self, now: float) -> float | None:
        """Dispatch all that wait: another admission is in force. Returns when it is to be called again; None: all went."""


@runtime_checkable
class FrontAdmission(Protocol):
    """An AdmissionController that hands requests on to the one `behind`, which its `close` leaves alone: that may stay in force."""

    @property
    def behind(self) -> AdmissionController: ...


@runtime_checkable
class AdmissionProvider(Protocol):
    """A data producer for which requests have to wait. With flow control they do so only if its `before_flow_control` is true."""

    def admission(self, behind: AdmissionController) -> AdmissionController:
        """Return a controller that decides in place of `behind`, and asks it too. Without `before_flow_control`, `behind` lets
        nothing wait.
        """


@runtime_checkable
class WrappingProducer(Protocol):
    """A data producer that passes all that it learns on to others, `wrapped`: nobody else calls them."""

    wrapped: Sequence[DataProducer]


def wrapped_by(producers: Iterable[DataProducer]) -> list[DataProducer]:
    return [one for outer in producers if isinstance(outer, WrappingProducer) for one in outer.wrapped]


@runtime_checkable
class RehearsingProducer(Protocol):
    """A data producer whose `prepare` changes what it knows."""

    def rehearse(self, request: InferenceRequest, pool: EndpointPool) -> Callable[[], None]:
        """`prepare` for a request that is only explained; the returned function takes back what it changed."""


@runtime_checkable
class CreditingProducer(Protocol):
    """A data producer that notes how much of the prompts it believed to be held where they were sent."""

    @property
    def credits(self) -> Mapping[Key, Credit]:
        """Bytes of prompts, by the key of the endpoint that they were sent to."""


@runtime_checkable
class DeliveryFollower(Protocol):
    """A data producer that learns what caches delivered, where answers say so, and by whose word it goes."""

    def delivered(self, request: InferenceRequest, cached: int) -> None:
        """This many tokens of the prompt were in the cache of the worker that answered."""

    def says(self, endpoint: Endpoint) -> CacheEvidence | None:
        """None: the endpoint publishes no events."""


@runtime_checkable
class PredictingProducer(Protocol):
    """A data producer that learns when answers begin. `predictions`: in seconds; `prediction_errors`: the shares by which they were
    wrong.
    """

    @property
    def predictions(self) -> Histogram: ...
    @property
    def prediction_errors(self) -> Histogram: ...

    def expected(self, request: InferenceRequest, pool: EndpointPool, endpoint: Endpoint) -> float:
        """Seconds to the first byte if the request went to that endpoint now; negative: not known."""

    def foresee(self, request: InferenceRequest, pool: EndpointPool) -> float:
        """The same at the endpoint where it is soonest, of a request that is not scheduled yet."""

    def learnt(self) -> Mapping[str, Any]:
        """Its knowledge of the pool, for /debug/endpoints."""

    def learnt_of(self, endpoint: Endpoint) -> Mapping[str, Any]:
        """Its knowledge of one endpoint."""


@runtime_checkable
class CostLearner(Protocol):
    """A data producer that learns what requests cost, and from what other pickers learnt of it."""

    @property
    def own_fit(self) -> Fit | None:
        """The costs that it learnt itself; None: nothing that is of use."""

    def use_peer_fits(self, fits: Sequence[Fit]) -> None:
        """The fits of all other pickers, in place of those before."""


@runtime_checkable
class UsageFollower(Protocol):
    """A fairness policy that learns how many tokens there were, from the answers that are read."""

    def used(self, request: InferenceRequest, prompt: int | None, output: int | None) -> None:
        """The answer says how many; None: it does not."""


@runtime_checkable
class DataConsumer(Protocol):
    """A built-in filter, scorer or profile handler that reads what data producers prepared."""

    @property
    def producers(self) -> tuple[DataProducer, ...]: ...


@runtime_checkable
class LearningScorer(Protocol):
    """A scorer that uses numbers that its data producers learn."""

    def unlearnt_score(self, request: InferenceRequest, pool: EndpointPool) -> Floats | None:
        """Score without them, as a new column; None: they change nothing yet."""


@runtime_checkable
class InFlightReader(Protocol):
    """A scorer that reads only what was sent and no page shows yet, and scores 1 where that is nothing."""

    @property
    def requests(self) -> float:
        """This many requests halve the score."""

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores: ...

    def score_of(self, unreported: float) -> float:
        """The score of one endpoint; falls as `unreported` grows."""


@runtime_checkable
class Screener(Protocol):
    """A data producer that leaves endpoints out before any profile runs, so that all profiles of a request see the same ones."""

    @property
    def name(self) -> str: ...

    def screen(self, request: InferenceRequest, pool: EndpointPool) -> tuple[Mask, str]:
        """The endpoints that stay; if none does, the request is answered with 503, and the text says why."""


class Picker(Protocol):
    """Chooses endpoints by the weighted sum of their scores."""

    def pick(self, scores: Floats, k: int) -> Indices:
        """At most `k` different indices, the choice first, then its fallbacks; `scores` is never empty."""


@runtime_checkable
class BestPicker(Picker, Protocol):
    """A picker that takes the highest scores, so that a profile need not score endpoints that cannot have the highest."""

    def highest(self, scores: Floats, k: int) -> list[int]:
        """Return the same rows as `pick`, as a list."""

    def break_tie(self, best: list[int]) -> int:
        """One of the rows with the highest score."""


class ProfileHandler(Protocol):
    """Decides which profiles a request runs through, and combines their results into a pick, as in the Go picker.

    `pick` is called without results, then again with the results of the profiles that it named, until it names none; then
    `result`. `epp.scheduling.prefix.scorer.prefix_match` tells how much of a prompt an endpoint holds.
    """

    # A handler without a choice may say `takes_only_profile = True`: then it is not asked, and reads no data producer.

    def check(self, profiles: Collection[str]) -> None:
        """Called when a configuration is built; raises ValueError if the handler cannot work with these profiles."""

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        """The profiles to run next; none: go on to `result`. A profile runs at most once."""

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        """The pick that follows from all results; raises `Rejection`, such as that of the primary profile."""


@runtime_checkable
class IdentityHeaders(Protocol):
    """A request header processor that knows which headers say who sent a request."""

    @property
    def headers(self) -> Sequence[str]:
        """In lower case; the first that a request has is its fairness id, if it names none itself."""


@runtime_checkable
class StagedHandler(ProfileHandler, Protocol):
    """A handler that takes the only profile, and for workers with roles runs it once more, under the name `stage`."""

    @property
    def stage(self) -> str: ...

    def has_stages(self, pool: EndpointPool) -> bool:
        """Whether workers have roles; otherwise it is not asked."""

    def of_stage(self, name: str, pool: EndpointPool) -> EndpointPool:
        """The endpoints that the profile is to see under that name."""


class RequestFollower:
    """Every method of `DataProducer`, without effect."""

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None: ...
    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None: ...
    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None: ...
    def failed(self, request: InferenceRequest) -> None: ...
    def sized(self, endpoint: Endpoint, tokens: int) -> None: ...
    def forget(self, endpoint: Endpoint) -> None: ...
    def retain(self, endpoints: Sequence[Endpoint]) -> None: ...
