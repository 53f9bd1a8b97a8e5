"""Reads what a request itself says of its prompt's tokens. Pure."""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from epp.request.inference_api import CompletionBody, HeldChat, ModelBody, Prompt

_TOKENS: Final = msgspec.json.Decoder(list[int])
_SALT: Final = msgspec.json.Decoder(str)
_MOST_TOKEN: Final = 0xFFFF_FFFF


class TokensBy(StrEnum):
    """The source of the tokens of a prompt. MEMORY: an equal request was asked about before."""

    WORKER = "worker"
    FILES = "files"
    MEMORY = "memory"
    NOBODY = "nobody"


def given_tokens(prompt: Prompt) -> list[int] | None:
    """The tokens of a prompt that its client sent as tokens; None: it did not."""
    if not isinstance(prompt, CompletionBody) or bytes(memoryview(prompt.prompt)[:1]) != b"[":
        return None
    try:
        tokens = _TOKENS.decode(prompt.prompt)
    except msgspec.MsgspecError:
        return None  # texts, or several prompts
    return tokens if are_tokens(tokens) else None


def are_tokens(tokens: Sequence[int]) -> bool:
    return bool(tokens) and min(tokens) >= 0 and max(tokens) <= _MOST_TOKEN


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """32 bits each, in the machine's order."""
    return array("I", tokens).tobytes()


def salt_of(prompt: Prompt) -> str:
    """The request's cache_salt; empty: none."""
    if not isinstance(prompt, ModelBody | HeldChat) or not memoryview(prompt.cache_salt).nbytes:
        return ""
    try:
        return _SALT.decode(prompt.cache_salt)
    except msgspec.MsgspecError:
        return ""
