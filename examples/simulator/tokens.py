"""Text to tokens and back without a vocabulary: a token is up to four characters and the blanks before them."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat

_TOKEN = re.compile(r"\s{0,16}\S{1,4}|\s{1,16}")
_NOTHING_TO_ECHO = "I am here."


def tokenize(text: str) -> list[str]:
    """The tokens of a text; joined they are the text again."""
    return _TOKEN.findall(text)


def echo(text: str, count: int | None) -> list[str]:
    """`count` tokens that repeat the text, or the text once. Tokenizing the joined answer gives these tokens again,
    so the next turn of a chat finds the answer in the prefix cache."""
    once = tokenize(text.strip() or _NOTHING_TO_ECHO)
    if count is None:
        return once
    again = [" " + once[0], *once[1:]]
    return list(islice(chain(once, chain.from_iterable(repeat(again))), count))


def block_digests(salt: str, tokens: Sequence[str], block_size: int) -> tuple[bytes, ...]:
    """One digest per full block, each chained to the one before: equal digests mean equal prefixes (as in vLLM)."""
    return tuple(_chain(salt, tokens, block_size))


def _chain(salt: str, tokens: Sequence[str], block_size: int) -> Iterator[bytes]:
    digest = salt.encode("utf-8", "surrogatepass")
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = "\0".join(tokens[start : start + block_size]).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(digest + b"\0" + block, digest_size=16).digest()
        yield digest
