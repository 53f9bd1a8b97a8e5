"""`python -m benchmarks.open_page [NAME ...]`: of picker, discovery, dispatcher; all of them without a name."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from benchmarks.open_page import discovery, dispatcher, picker

_PAGES: dict[str, Callable[[], Awaitable[None]]] = {
    "picker": picker.main,
    "discovery": discovery.main,
    "dispatcher": dispatcher.main,
}


async def main(names: list[str]) -> None:
    for name in names:
        await _PAGES[name]()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(_PAGES)))
