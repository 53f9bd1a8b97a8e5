"""A second network namespace on a link that can drop all packets, for servers that become unreachable without a reset."""

import subprocess
from types import TracebackType
from typing import Final, Self

_WIRE: Final = ("adsum0", "adsum1")
_NOBODY: Final = "02:00:00:00:00:01"
"""A hardware address that no interface has: frames to it are lost without an ICMP error."""


class SecondNetwork:
    """A context manager. Two subnets on one wire: `dark` is the address there that `drop` makes unreachable in both
    directions, `lit` the one that stays. `inside`: the command that runs another one there.
    """

    dark: Final = "10.99.0.2"
    lit: Final = "10.98.0.2"
    _ours: Final = ("10.99.0.1", "10.98.0.1")

    def __init__(self) -> None:
        self._holder: subprocess.Popen[str] | None = None

    @property
    def inside(self) -> list[str]:
        assert self._holder is not None
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"]

    def drop(self) -> None:
        """Drops all packets from now on, resets included."""
        self._here(
            "ip", "neigh", "replace", self.dark, "lladdr", _NOBODY, "dev", _WIRE[0], "nud", "permanent"
        )
        self._there(
            "ip", "neigh", "replace", self._ours[0], "lladdr", _NOBODY, "dev", _WIRE[1], "nud", "permanent"
        )

    def restore(self) -> None:
        self._here("ip", "neigh", "del", self.dark, "dev", _WIRE[0])
        self._there("ip", "neigh", "del", self._ours[0], "dev", _WIRE[1])

    def __enter__(self) -> Self:
        # it lives as long as its standard input, hence no longer than we do
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        pid = str(self._holder.pid)
        self._here("ip", "link", "add", _WIRE[0], "type", "veth", "peer", "name", _WIRE[1], "netns", pid)
        for ours, theirs in zip(self._ours, (self.dark, self.lit), strict=True):
            self._here("ip", "addr", "add", f"{ours}/24", "dev", _WIRE[0])
            self._there("ip", "addr", "add", f"{theirs}/24", "dev", _WIRE[1])
        self._here("ip", "link", "set", _WIRE[0], "up")
        self._there("ip", "link", "set", _WIRE[1], "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._holder is not None
        self._here("ip", "link", "del", _WIRE[0])
        self._holder.communicate()

    def _there(self, *command: str) -> None:
        self._here(*self.inside, *command)

    def _here(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
