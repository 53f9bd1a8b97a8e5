"""Renders one request and its result as JSON, for the front door and the command line (pure)."""

import json
from typing import Any

from dispatcher.broker.contract.message import Result
from dispatcher.broker.contract.queue import State


def render_request(id: str, state: State, result: Result | None) -> dict[str, Any]:
    """The request as a JSON document. The response body is parsed if it is JSON, else a string."""
    document: dict[str, Any] = {"id": id, "object": "dispatch.request", "status": state.value}
    if result is not None:
        error = (
            None
            if result.error_code is None
            else {"code": result.error_code, "message": result.error_message}
        )
        succeeded = error is None and 200 <= result.status_code < 400
        document["status"] = "succeeded" if succeeded else "failed"
        document["attempts"] = result.attempts
        document["response"] = {"status_code": result.status_code, "body": _decode_body(result)}
        document["error"] = error
    return document


def _decode_body(result: Result) -> Any:
    try:
        return json.loads(result.payload)
    except ValueError:
        return result.payload.decode(errors="replace")
