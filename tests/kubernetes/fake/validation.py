"""Validates as the API server does: list options that contradict each other, addresses that no pod can have."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network

from tests.kubernetes.fake.calls import StatusError, invalid
from tests.kubernetes.fake.rv_log import Object, Selector, SelectorError

_FORBIDDEN = (
    ("may not be unspecified ({})", ("0.0.0.0/32", "::/128")),
    ("may not be in the loopback range (127.0.0.0/8, ::1/128)", ("127.0.0.0/8", "::1/128")),
    ("may not be in the link-local range (169.254.0.0/16, fe80::/10)", ("169.254.0.0/16", "fe80::/10")),
    ("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)", ("224.0.0.0/24", "ff02::/16")),
)
_VERSIONS = {"IPv4": 4, "IPv6": 6}
_MATCH = "resourceVersionMatch"


def check_slice(obj: Object, *, allow_loopback: bool = False) -> None:
    """Raises 422 as the validation of discovery.k8s.io/v1 does; `allow_loopback` is for workers of tests."""
    problems = list(_slice_problems(obj, allow_loopback))
    if problems:
        raise invalid("EndpointSlice.discovery.k8s.io", obj["metadata"]["name"], problems)


def _slice_problems(obj: Object, allow_loopback: bool) -> Iterator[tuple[str, str]]:
    kind = obj.get("addressType")
    if kind not in ("IPv4", "IPv6", "FQDN"):
        yield "addressType", f'Unsupported value: "{kind}": supported values: "FQDN", "IPv4", "IPv6"'
    endpoints = obj.get("endpoints") or []
    if len(endpoints) > 1000:
        yield "endpoints", f"Too many: {len(endpoints)}: must have at most 1000 items"
    for i, endpoint in enumerate(endpoints):
        field = f"endpoints[{i}].addresses"
        addresses = endpoint.get("addresses") or []
        if not addresses:
            yield field, "Required value"
        for j, address in enumerate(addresses):
            if kind in _VERSIONS and (problem := _address_problem(address, _VERSIONS[kind], allow_loopback)):
                where = field if problem.startswith("must be an IPv") else f"{field}[{j}]"
                yield where, f'Invalid value: "{address}": {problem}'


def _address_problem(text: str, version: int, allow_loopback: bool) -> str | None:
    try:
        address = ip_address(text)
    except ValueError:
        return "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    if address.version != version:
        return f"must be an IPv{version} address"
    if allow_loopback and address.is_loopback:
        return None
    networks = ((problem, map(ip_network, ranges)) for problem, ranges in _FORBIDDEN)
    found = next((problem for problem, ranges in networks if any(address in net for net in ranges)), None)
    return found and found.format(text)


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The query of a list or a watch, checked."""

    selector: Selector
    watch: bool = False
    version: str = ""
    match: str = ""
    initial_events: bool | None = None
    bookmarks: bool = False
    timeout: int | None = None
    limit: int = 0
    token: str = ""

    @classmethod
    def parse(cls, params: Mapping[str, str], *, watch_list: bool) -> "ListOptions":
        """Raises 400 for what cannot be read and 422 for what contradicts (meta/internalversion/validation).

        `watch_list`: whether the server's gate of that name is on.
        """
        options = _read(params)
        from_nothing = options.watch and options.version in ("", "0")
        if watch_list and from_nothing and options.initial_events is None and not options.match:
            options = replace(options, match="NotOlderThan", initial_events=True)  # defaults.go
        return _checked(options, watch_list)


def _read(params: Mapping[str, str]) -> ListOptions:
    try:
        return ListOptions(
            selector=Selector.parse(params.get("labelSelector", ""), params.get("fieldSelector", "")),
            watch=_flag(params.get("watch")),
            version=params.get("resourceVersion", ""),
            match=params.get(_MATCH, ""),
            initial_events=_flag(params["sendInitialEvents"]) if "sendInitialEvents" in params else None,
            bookmarks=_flag(params.get("allowWatchBookmarks")),
            timeout=int(params["timeoutSeconds"]) if "timeoutSeconds" in params else None,
            limit=int(params.get("limit", "0")),
            token=params.get("continue", ""),
        )
    except (SelectorError, ValueError) as error:
        raise StatusError(400, "BadRequest", str(error)) from error


def _checked(options: ListOptions, watch_list: bool) -> ListOptions:
    check = _watch_problems if options.watch else _list_problems
    problems = list(check(options, watch_list))
    if problems:
        raise invalid("ListOptions.meta.k8s.io", "", problems)
    return options


def _watch_problems(options: ListOptions, watch_list: bool) -> Iterator[tuple[str, str]]:
    if options.initial_events is None:
        if options.match:
            yield (
                _MATCH,
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        return
    if not watch_list:
        yield (
            "sendInitialEvents",
            "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        )
    elif options.match != "NotOlderThan":
        yield _MATCH, "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"


def _list_problems(options: ListOptions, watch_list: bool) -> Iterator[tuple[str, str]]:
    if options.initial_events is not None:
        yield "sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list"
    if not options.match:
        return
    if options.token:
        yield _MATCH, "Forbidden: resourceVersionMatch is forbidden when continue is provided"
    if not options.version:
        yield _MATCH, "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    if options.match not in ("Exact", "NotOlderThan"):
        yield _MATCH, f'Unsupported value: "{options.match}": supported values: "Exact", "NotOlderThan", ""'
    if options.match == "Exact" and options.version == "0":
        yield _MATCH, 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'


def _flag(text: str | None) -> bool:
    """As servers read booleans of a query: anything but these words is true."""
    return text is not None and text.lower() not in ("", "0", "false")
