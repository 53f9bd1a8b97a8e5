"""The commands of `python -m discovery`: what `list`, `watch`, `explain` and `check` print, as text or as JSON."""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from adsum.command_line import SUCCEEDED, program
from adsum.serving.sockets import raise_descriptor_limit
from adsum.signals import cancel_on
from adsum.tasks import cancel_and_wait
from discovery.check import Verdict, check_contract
from discovery.errors import AdsumError, MetadataUnavailableError
from discovery.events import InstanceEvent, InstanceRemovedEvent
from discovery.explanation import is_faultless
from discovery.instance import Instance, find_same_address
from discovery.metadata.document import serving_port
from discovery.opening import display_url, open
from discovery.service import ServiceDiscovery, SourceDiscovery
from discovery.watch import HealthChanges

_LONGEST_SHOWN = 400
"""Characters of a document in one line of text."""
_COLUMNS = ("ID", "URL", "STATUS")
_MOST_COMPONENTS: Final = 100
"""Components that are listed, each with a watch of its own."""
_LOOKUP_TIMEOUT: Final = 2.0
"""Seconds: a person waits for the list, and one silent worker must not delay it much."""


@dataclass(frozen=True, slots=True)
class MetadataLookup:
    """`instance` with its `serving_port`; `metadata` None: `problem` says why, and `instance.url` is the registered one."""

    instance: Instance
    metadata: dict[str, Any] | None
    problem: str | None = None


def run(options: argparse.Namespace) -> int:
    """Returns the exit code."""
    raise_descriptor_limit()  # a watch holds a GET for each worker
    commands = {
        "list": _list, "watch": _watch, "explain": _explain, "serve": _serve, "check": _check, "eds": _eds
    }  # fmt: skip
    try:
        return asyncio.run(commands[options.command](options))
    except asyncio.CancelledError:  # SIGTERM
        return SUCCEEDED


async def _list(options: argparse.Namespace) -> int:
    if options.namespace is not None and options.component is None:
        raise ValueError(f"a component is missing behind {options.namespace!r}; expected both names, or none")
    async with open(options.discovery, token=_token()) as service:
        if options.namespace is None:
            return await _list_components(service, options)
        found = await service.list_instances(options.namespace, options.component, timeout=options.timeout)
        if not found:
            await _warn_none_ready(service, options)
        lookups = await asyncio.gather(*map(_look_up, found))
    if options.json:
        for one in lookups:
            document = {"metadata": one.metadata} if options.metadata else {}
            _print_json(_as_dict(one.instance) | document)
    else:
        shown = (_COLUMNS, *(_row(one.instance) for one in lookups))
        documents = ("METADATA", *(_document(one.metadata) for one in lookups))
        wide = zip(shown, documents, strict=True)
        _print_table([(*row, document) if options.metadata else row for row, document in wide])
    _warn_no_metadata(lookups, options)
    _warn_same_address([one.instance for one in lookups])
    return 0


async def _list_components(service: SourceDiscovery, options: argparse.Namespace) -> int:
    """Prints what the source holds, by component."""
    if options.metadata:
        raise ValueError("--metadata is of one component; expected a namespace and a component before it")
    counts, more = await service.survey(_MOST_COMPONENTS, timeout=options.timeout)
    if options.json:
        for (namespace, component), ready, others in counts:
            _print_json({"namespace": namespace, "component": component, "ready": ready, "not_ready": others})
    elif counts:
        rows = ((*key, str(ready), str(others)) for key, ready, others in counts)
        _print_table([("NAMESPACE", "COMPONENT", "READY", "NOT READY"), *rows])
    if more:
        _tell(f"and {more} more components; expected at most {_MOST_COMPONENTS} at a time")
    if not counts:
        _tell(f"nothing is registered at {display_url(options.discovery)}")
    return SUCCEEDED


def _warn_same_address(instances: Sequence[Instance]) -> None:
    """Names instances that share one address."""
    others = find_same_address(instances)
    for instance in instances:
        if instance.id in others and instance.id < min(others[instance.id]):
            beside = ", ".join(others[instance.id])
            message = f"{instance.id} serves the same address as {beside} ({instance.url}): one server, counted twice or more"
            print(message, file=sys.stderr, flush=True)


def _warn_no_metadata(lookups: Sequence[MetadataLookup], options: argparse.Namespace) -> None:
    """Names instances whose URL is the registered one because their metadata is unavailable."""
    unknown = [one for one in lookups if one.metadata is None]
    if unknown:
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        print(
            f"{unknown[0].instance.id}{others}: the URL is the registered one, because its metadata is unavailable "
            f"({unknown[0].problem}); {program('discovery')} explain {options.namespace} {options.component} says more",
            file=sys.stderr,
            flush=True,
        )


async def _warn_none_ready(service: ServiceDiscovery, options: argparse.Namespace) -> None:
    """Says that there is no ready instance, and what is there instead."""
    where = display_url(options.discovery)
    message = f"no ready instance of {options.namespace}/{options.component} at {where}"
    with suppress(AdsumError, TimeoutError):  # the empty list is known already; `explain` may fail
        async with asyncio.timeout(options.timeout):
            explanation = await service.explain(options.namespace, options.component)
        hint = f"{program('discovery')} explain {options.namespace} {options.component} says why"
        waiting = f"{len(explanation.candidates)} not ready, {hint}"
        message += f": {waiting if explanation.candidates else '; '.join(explanation.remarks())}"
    print(message, file=sys.stderr, flush=True)


async def _watch(options: argparse.Namespace) -> int:
    cancel_on(signal.SIGTERM)
    async with (
        open(options.discovery, token=_token()) as service,
        service.watch(options.namespace, options.component, metadata=options.metadata) as stream,
    ):
        telling = asyncio.create_task(HealthChanges(_tell).follow(lambda: stream.health))
        try:
            last: dict[str, MetadataLookup] = {}
            async for event in stream:
                lookup = await _look_up_event(event, last)
                document = {"metadata": lookup.metadata} if options.metadata else {}
                _print_event(event, lookup.instance, document, as_json=options.json)
        finally:
            await cancel_and_wait(telling)
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def _look_up(instance: Instance) -> MetadataLookup:
    try:
        async with asyncio.timeout(_LOOKUP_TIMEOUT):
            metadata = await instance.metadata()
    except MetadataUnavailableError as error:
        return MetadataLookup(instance, None, error.reason)
    except TimeoutError:
        return MetadataLookup(instance, None, f"no answer within {_LOOKUP_TIMEOUT:g} s")
    return MetadataLookup(replace(instance, serving_port=serving_port(instance, metadata)), metadata)


async def _look_up_event(event: InstanceEvent, last: dict[str, MetadataLookup]) -> MetadataLookup:
    """The instance with its serving port; if its metadata is unavailable, with the port of its `last` lookup."""
    instance = event.instance
    before = last.pop(instance.id, MetadataLookup(instance, None))
    may_answer = not isinstance(event, InstanceRemovedEvent) and instance.reachable
    lookup = await _look_up(instance) if may_answer else MetadataLookup(instance, None)
    if lookup.metadata is None:
        lookup = MetadataLookup(replace(instance, serving_port=before.instance.serving_port), None)
    if not isinstance(event, InstanceRemovedEvent):
        last[instance.id] = lookup
    return lookup


async def _explain(options: argparse.Namespace) -> int:
    async with open(options.discovery, token=_token()) as service:
        explanation = await service.explain(options.namespace, options.component)
    if options.json:
        for remark in explanation.remarks():
            _print_json({"id": None, "is_instance": False, "reason": remark})
        for candidate in explanation.candidates:
            _print_json(
                {"id": candidate.id, "is_instance": candidate.is_instance, "reason": candidate.reason}
            )
    else:
        print(explanation)
    return 0 if is_faultless(explanation) else 1


async def _check(options: argparse.Namespace) -> int:
    verdicts: set[Verdict] = set()
    async for finding in check_contract(options.url, token=_token()):
        seen = f": {finding.seen}" if finding.seen else ""
        print(f"{finding.verdict:7}{finding.requirement}{seen}", flush=True)
        verdicts.add(finding.verdict)
    if Verdict.BROKEN in verdicts:
        print("\nbroken: discovery cannot use this worker's metadata")
    elif verdicts == {Verdict.WEAK}:
        print("\nnothing here keeps any of the contract: is this the URL of a worker?")
    elif Verdict.WEAK in verdicts:
        print("\nusable: what is weak is polled instead of pushed, ignored, or cannot be verified")
    else:
        print("\nit keeps the contract")
    return int(Verdict.BROKEN in verdicts or verdicts == {Verdict.WEAK})


async def _eds(options: argparse.Namespace) -> int:
    from discovery.eds.process import serve

    return await serve(options)


async def _serve(options: argparse.Namespace) -> int:
    from discovery.web.process import serve  # aiohttp's server, which the others do without

    return await serve(options)


def _token() -> str | None:
    return os.environ.get("ADSUM_TOKEN") or None


def _print_event(
    event: InstanceEvent, instance: Instance, document: dict[str, Any], *, as_json: bool
) -> None:
    kind = type(event).__name__.removeprefix("Instance").removesuffix("Event").lower()
    reason = {"reason": event.reason} if isinstance(event, InstanceRemovedEvent) else {}
    if as_json:
        _print_json({"event": kind, **reason, "instance": _as_dict(instance) | document})
        return
    detail = " ".join((*_row(instance), *(f"({value})" for value in reason.values())))
    unreachable = "" if instance.reachable else " unreachable"
    metadata = document.get("metadata")
    shown = "" if metadata is None else f" {_document(metadata)}"
    print(f"{kind:8}{detail}{unreachable}{shown}", flush=True)


def _document(metadata: dict[str, Any] | None) -> str:
    text = "-" if metadata is None else json.dumps(metadata)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}... (--json has all of it)"


def _as_dict(instance: Instance) -> dict[str, Any]:
    names = ("id", "namespace", "component", "address", "port", "incarnation", "status", "zone", "node")
    found = ("revision", "serving_port", "url", "reachable", "rank")
    return {name: getattr(instance, name) for name in (*names, *found)} | {
        "labels": dict(instance.labels),
        "ports": dict(instance.ports),
    }


def _row(instance: Instance) -> tuple[str, ...]:
    return instance.id, instance.url, instance.status


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _print_table(rows: Iterable[tuple[str, ...]]) -> None:
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
