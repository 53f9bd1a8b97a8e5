"""The processes of one picker, as each of them knows the others: it inherits this from the process that starts them all."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from adsum.serving.handing import HandedSocket
from epp.config.declared_flags import MOST_PROCESSES
from epp.config.settings import Settings

VARIABLE: Final = "ADSUM_EPP_PROCESS"
"""The variable of the environment that tells a process who it is. Written by `describe`."""
SharedTopic: TypeAlias = tuple[Callable[[], bytes], Callable[[list[Any]], Any]]
"""A topic of the page as one process has it, null where it has none; and what makes one of those of all processes, this one's first."""


class HandedFrom(NamedTuple):
    """One port whose connections are handed over: the descriptor that they come by, and the address that clients connect to."""

    descriptor: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Siblings:
    """This process is at `place`, from 1 to `count`. `folder`: that only this user can enter. `ports`: by name."""

    place: int
    count: int
    folder: Path
    ports: Mapping[str, HandedSocket]

    @property
    def name(self) -> str:
        return f"process {self.place}"

    @property
    def others(self) -> dict[str, int]:
        """Their places, by name."""
        return {f"process {one}": one for one in range(1, self.count + 1) if one != self.place}

    def describe(self) -> dict[str, Any]:
        """For /status: which process answers, and how many there are."""
        return {"process": self.place, "processes": self.count}

    def peer_target(self, place: int) -> str:
        """Return the target, for gRPC, at which a process answers calls of its peers."""
        return f"unix:{self.folder / f'{place}.peers'}"

    def news_path(self, place: int) -> str:
        """Return the socket on which a process listens for what its peers pick."""
        return str(self.folder / f"{place}.news")

    def page_path(self, place: int) -> str:
        """Return the socket on which a process serves what its siblings show of it."""
        return str(self.folder / f"{place}.pages")

    def workers_path(self, place: int) -> str:
        """Return the socket on which a process reports to its siblings what it hears of workers."""
        return str(self.folder / f"{place}.workers")

    def sequence(self) -> int:
        """A number that grows with time, which all processes see alike, and that no other process has."""
        return int(time.monotonic() * 1e6) * MOST_PROCESSES + self.place - 1

    def share(self, settings: Settings) -> Settings:
        """A process's part of what the flags give to all of them."""
        buffered = max(settings.max_body_bytes, settings.max_buffered_bytes // self.count)
        peer_port = settings.peer_port and settings.peer_port + self.place - 1
        return replace(settings, processes=self.count, max_buffered_bytes=buffered, peer_port=peer_port)


def describe(place: int, count: int, folder: Path, ports: Mapping[str, HandedFrom]) -> dict[str, str]:
    """The environment of one process."""
    return {VARIABLE: json.dumps([place, count, str(folder), ports])}


def inherited() -> Siblings | None:
    """None: this process was not started as one of several. To be called once: it takes the descriptors."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    place, count, folder, ports = json.loads(text)  # bounded: our own parent wrote it
    sockets = {name: HandedSocket(fd, (host, port)) for name, (fd, host, port) in ports.items()}
    return Siblings(place, count, Path(folder), sockets)
