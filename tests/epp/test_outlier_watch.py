"""The detection of a running picker: its timer, its probes over real sockets, and what stays when it is switched."""

import random
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from adsum.tasks import background
from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.outlier_watch import OutlierWatch
from epp.outliers.outlier_record import OutlierState
from epp.outliers.settings import OutlierSettings
from epp.scheduling.director import Director
from tests.epp.scheduling.test_models_endpoint import director, store_of
from tests.eventually import eventually
from tests.http_server import http_server

QUICK = OutlierSettings.model_construct(
    consecutive_5xx=1, base_ejection_time=0.1, interval=0.1, probe_timeout=5.0
)


class Health:
    """A worker's page, with the statuses of its next answers; the last one stays."""

    def __init__(self) -> None:
        self.statuses = [500, 503, 200]
        self.asked: list[str] = []
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.Response(status=self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])


@pytest.fixture
async def health() -> AsyncIterator[Health]:
    page = Health()
    async with http_server({"/health": page.answer}) as page.port:
        yield page


def watched(store: Datastore) -> tuple[Director, OutlierWatch]:
    it = director(store)
    return it, OutlierWatch(it, store, time.monotonic, random.Random(1))


async def test_a_worker_is_probed_until_it_answers_without_a_5xx(health: Health) -> None:
    store = store_of(other=())
    store.apply(InstanceAddedEvent(Instance("w", "ns", "c", "127.0.0.1", health.port, "1")))
    endpoint = store.endpoints[1]
    _, watch = watched(store)
    watch.use(QUICK, None)
    detection = watch.detection
    assert detection is not None
    async with background(watch.run()):
        detection.answered("request", endpoint, 500, None, time.monotonic())
        assert [(one["id"], one["state"], one["cause"]) for one in watch.describe()["outliers"]] == [
            ("w", "ejected", "consecutive_5xx")
        ]
        await eventually(lambda: [one.state for one in detection.ejected] == [OutlierState.TRIAL])
    assert health.asked == ["/health"] * 3
