"""A tokenizer without a vocabulary: a token is up to four characters and the whitespace before them. Its number is a hash."""

import hashlib
import re
import zlib
from array import array
from collections.abc import Sequence
from itertools import chain, islice, repeat

_TOKEN = re.compile(r"\s{0,16}\S{1,4}|\s{1,16}")
_NOTHING_TO_ECHO = "I am here."


def tokenize(text: str) -> list[str]:
    """Lossless: the joined tokens are the text."""
    return _TOKEN.findall(text)


def echo(text: str, count: int | None) -> list[str]:
    """`count` tokens that repeat the text; None: the text once. Tokenizing the joined tokens gives the same tokens, so the
    next turn of a chat finds this answer in the prefix cache."""
    said = text.strip() or _NOTHING_TO_ECHO
    if count is None:
        return tokenize(said)
    once = [found[0] for found in islice(_TOKEN.finditer(said), count)]
    if len(once) == count:
        return once
    again = [" " + once[0], *once[1:]]
    return list(islice(chain(once, chain.from_iterable(repeat(again))), count))


def token_id(token: str) -> int:
    """The number of a token; of `#123`, which stands for a token that a client sent as a number, that number."""
    if token[0] == "#" and token[1:].isdecimal():
        return int(token[1:]) & 0xFFFF_FFFF
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) >> 1


def block_digests(salt: str, tokens: Sequence[str], block_size: int) -> tuple[bytes, ...]:
    """One digest for each full block, over it and its predecessor's digest, like vLLM's block hashes: equal digests mean
    equal prefixes."""
    digest = salt.encode("utf-8", "surrogatepass")
    numbers = array("I", map(token_id, tokens))
    taken, size = numbers.tobytes(), block_size * numbers.itemsize
    digests = []
    for start in range(0, len(taken) - size + 1, size):
        digest = hashlib.blake2b(digest + b"\0" + taken[start : start + size], digest_size=16).digest()
        digests.append(digest)
    return tuple(digests)
