"""`epp decisions` and `epp explain`: ask a picker, and print its answer."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from adsum.command_line import INTERRUPTED, SUCCEEDED, on_broken_pipe, print_error
from adsum.units import write_duration
from discovery.errors import AdsumError
from epp.decision_commands.decision_text import details, line, told_by
from epp.decision_commands.picker_client import PickerClient, picker_client
from epp.decision_commands.request_file import explained_request

_POLL: Final = 0.5
"""Seconds between two questions for new decisions."""
_PAGE: Final = 1000
_MOST_ROWS: Final = 20_000
"""Candidates in one answer, as docs/decisions.md says."""
_DECISIONS: Final = "/debug/decisions"

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


def run(command: Command, options: argparse.Namespace) -> int:
    """Returns the exit code."""
    try:
        return asyncio.run(command(options))
    except KeyboardInterrupt:
        return SUCCEEDED if getattr(options, "follow", False) else INTERRUPTED
    except BrokenPipeError:
        return on_broken_pipe()
    except (AdsumError, ValueError, OSError) as error:
        return print_error(error)


async def explain(options: argparse.Namespace) -> int:
    if options.id is not None:
        if options.request is not None or options.path is not None or options.header:
            raise ValueError(
                "expected the ID of a past request, or a request by --request, --header and --path"
            )
        async with _picker(options) as picker:
            await _show_request(picker, {"request_id": options.id}, as_json=options.json)
        return SUCCEEDED
    if options.request is None:
        raise ValueError("a request is missing; expected --request FILE, or the ID of a past one")
    document = explained_request(options.request, options.path, dict(options.header))
    async with _picker(options) as picker:
        answer = await picker.post("/debug/explain", {"candidates": str(options.candidates)}, document)
        with picker.understood():
            if options.json:
                _print_json(answer)
            else:
                print("\n".join(details(answer)))
                print(told_by((await picker.get("/status", {}))["outcomes"]))
    return SUCCEEDED


async def decisions(options: argparse.Namespace) -> int:
    if None not in (options.id, options.request):
        raise ValueError(
            f"two requests are named: {options.id[:60]!r} and {options.request[:60]!r}; expected one"
        )
    request = options.id if options.request is None else options.request
    if options.follow and request is not None:
        raise ValueError("--follow and a request's ID exclude each other: the ID shows what is there")
    async with _picker(options) as picker:
        query = {"limit": str(options.limit), "candidates": _candidates(options.limit, options)}
        if options.slow is not None:
            query["slow"] = write_duration(options.slow)
        if request is not None:
            await _show_request(picker, query | {"request_id": request}, as_json=options.json)
            return SUCCEEDED
        page = await picker.get(_DECISIONS, query)
        with picker.understood():
            for decision in page["decisions"]:
                _show(decision, options)
            if not page["decisions"] and not options.json and not options.follow:
                print(_nothing_found(page["last"], page["capacity"], options.slow), file=sys.stderr)
            if options.follow:
                await _follow(picker, options, int(page["last"]))
    return SUCCEEDED


def _picker(options: argparse.Namespace) -> AbstractAsyncContextManager[PickerClient]:
    return picker_client(options.picker, options.token_file, options.ca_file)


async def _show_request(picker: PickerClient, query: dict[str, str], *, as_json: bool) -> None:
    """All about the decisions on one past request."""
    page = await picker.get(_DECISIONS, query | {"candidates": "1000"})
    with picker.understood():
        if not page["decisions"]:
            asked = query["request_id"][:60]
            raise AdsumError(
                f"no decision about the request {asked!r} is kept; the picker keeps {page['capacity']}"
            )
        for decision in page["decisions"]:
            if as_json:
                _print_json(decision)
            else:
                print("\n".join(details(decision)))


async def _follow(picker: PickerClient, options: argparse.Namespace, seen: int) -> None:
    """Show each decision after `seen` once its response headers came, or it can have none."""
    shown: set[int] = set()
    while True:
        query = {"after": str(seen), "limit": str(_PAGE), "candidates": _candidates(_PAGE, options)}
        page = await picker.get(_DECISIONS, query)
        found = page["decisions"]
        if page["last"] < seen:  # another process
            seen, shown = 0, set()
            continue
        for decision in found:
            if decision["sequence"] not in shown and _is_due(decision, options.slow):
                shown.add(decision["sequence"])
                _show(decision, options)
        before, seen = seen, _settled(found, seen)
        full = len(found) == _PAGE
        if full and seen == before:  # so many are unanswered: what comes after them counts more
            seen = found[-1]["sequence"]
        shown = {sequence for sequence in shown if sequence > seen}
        if not full:
            await asyncio.sleep(_POLL)


def _nothing_found(last: int, capacity: int, slow: float | None) -> str:
    if not last:
        return "no decision yet"
    return f"no decision of the last {min(last, capacity)} took {0.0 if slow is None else slow:g} s"


def _candidates(limit: int, options: argparse.Namespace) -> str:
    """As many as may be asked for at once; a line of text needs none."""
    return str(min(10, _MOST_ROWS // limit)) if options.json else "0"


def _settled(found: list[Any], seen: int) -> int:
    """The sequence up to which nothing changes any more that is shown."""
    for decision in found:
        if decision["outcome"]["state"] == "sent":
            return seen
        seen = decision["sequence"]
    return seen


def _is_due(decision: Any, slow: float | None) -> bool:
    outcome = decision["outcome"]
    waits = outcome["state"] == "sent"
    if slow is None:
        return not waits
    taken = outcome["time_to_headers"]
    return bool((outcome["seconds"] if taken is None else taken) >= slow)


def _show(decision: Any, options: argparse.Namespace) -> None:
    if options.json:
        _print_json(decision)
    else:
        print(line(decision), flush=True)


def _print_json(document: Any) -> None:
    # in ASCII: a client's text may hold control characters of a terminal
    print(json.dumps(document), flush=True)
