"""The sidecar's counters, and their page in Prometheus' text format. Pure but for the clock that it is given."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from adsum.histogram import Histogram

_PREFIX: Final = "adsum_pd_sidecar_"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REASONS: Final = (
    "header", "refused", "body", "several", "path", "unreachable", "status", "busy", "timeout", "lost", "answer", "finished",
)  # fmt: skip
"""Why a prompt was not computed by the prefill worker that was named."""


class SidecarMetrics:
    """Counts the requests of one sidecar, and their times. `now`: a clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.apart = 0
        self.alone = 0
        self.fallbacks = 0
        self.failed = 0
        self.reasons = Counter(dict.fromkeys(REASONS, 0))
        self.released = 0
        self.in_flight = 0
        self._prefill = Histogram(_SECONDS)

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        """The block asks a prefill worker; counted if it answers."""
        began = self._now()
        yield
        self._prefill.observe(self._now() - began)

    def text(self) -> str:
        """By hand, since the registry is installed without Prometheus' client; no label value needs an escape."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _family("requests_total", "counter", "Requests with a prompt, by where it was computed.")
        modes = {
            "prefill-decode": self.apart, "decode-only": self.alone, "fallback": self.fallbacks, "failed": self.failed,
        }  # fmt: skip
        for mode, count in modes.items():
            yield f'{_PREFIX}requests_total{{mode="{mode}"}} {count}'
        name = "prefill_failures_total"
        yield from _family(
            name, "counter", "Requests whose prompt was not computed by the prefill worker that was named."
        )
        for reason, count in self.reasons.items():
            yield f'{_PREFIX}{name}{{reason="{reason}"}} {count}'
        why = "Requests sent to the decode worker only to free the blocks of a client that had gone."
        yield from _family("released_total", "counter", why)
        yield f"{_PREFIX}released_total {self.released}"
        yield from _family("requests_in_flight", "gauge", "Requests that are being answered.")
        yield f"{_PREFIX}requests_in_flight {self.in_flight}"
        name = "prefill_seconds"
        yield from _family(name, "histogram", "Until a prefill worker had answered, with retries.")
        for bound, count in self._prefill.buckets():
            yield f'{_PREFIX}{name}_bucket{{le="{bound}"}} {count}'
        yield f"{_PREFIX}{name}_sum {self._prefill.total}"
        yield f"{_PREFIX}{name}_count {self._prefill.count}"


def _family(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {what}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
