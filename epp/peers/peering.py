"""The part of a picker that shares with its peers: what it picks, holds and learns, and what they do."""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final, Never

from adsum.tasks import ResourceOwner
from epp.config.picker_config import PickerConfig
from epp.config.settings import Settings
from epp.config.sibling_processes import Siblings
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.kv_events.feed import KvEventFeed, no_peers
from epp.peers import caches
from epp.peers.caches import PeerCaches
from epp.peers.connections import PeerConnections
from epp.peers.credentials import PeerCredentials, open_credentials
from epp.peers.link import SERVICE, PeerLink
from epp.peers.publisher import PickPublisher
from epp.peers.subscriber import PickSubscriber
from epp.picking import Picking
from epp.scheduling.plugin import ChainProducer, CostLearner

TELL_INTERVAL: Final = 0.01
"""Seconds for which what happens is collected into one message."""
_LOOK: Final = 0.1
"""Seconds between two looks at what is ejected, and what was learnt."""
_TEACH: Final = 1.0
"""Seconds between two looks whether something was learnt that is to be told."""


class Peers(ResourceOwner):
    """An async context manager; once entered, peers that are there have told what they send, or did not answer. A `ConfiguredPart`.

    Raises ValueError for a URL of peers; entering raises CertificateError and ListenError.
    """

    def __init__(
        self,
        settings: Settings,
        siblings: Siblings | None,
        picking: Picking,
        datastore: Datastore,
        outcomes: OutcomeLedger,
        kv_events: KvEventFeed,
    ) -> None:
        self._settings = settings
        self._siblings = siblings
        self._director = picking.director
        self._outliers = picking.outliers
        self._queueing = picking.queueing
        self._datastore = datastore
        self._outcomes = outcomes
        self._kv_events = kv_events
        self._clock = picking.clock
        self.publisher = PickPublisher(self._wake)
        self.connections = PeerConnections(settings, siblings, outcomes.name, picking.clock, self._new_link)
        self._caches = PeerCaches(
            kv_events, self.connections.channel, lambda: self.connections.dialed, SERVICE
        )
        self.connections.handlers[caches.METHOD] = self._caches.handler

    def prepare(self, config: PickerConfig) -> Callable[[], None]:
        return self._use_producers

    def _use_producers(self) -> None:
        producers = self._director.producers
        for one in producers:
            if isinstance(one, ChainProducer):
                one.use_seed(self.connections.credentials.seed)
        self.publisher.use(producers)

    async def _open(self) -> None:
        self.connections.credentials = self._open_credentials()
        self._use_producers()
        self._director.picks.peers = self.publisher
        self._outcomes.elsewhere = self.ended_elsewhere
        self._kv_events.ask_peers = self._caches.ask
        self._stack.callback(self._stop_publisher)
        self._start(self._share_seldom())
        await self._enter(self.connections)
        self._heed()  # so that the first pick knows what they learnt

    def _open_credentials(self) -> PeerCredentials:
        if self._settings.peers is None and self._siblings is not None:
            return PeerCredentials(None, os.fsencode(self._siblings.folder))
        return open_credentials(self._settings, self._start)

    def _stop_publisher(self) -> None:
        self._director.picks.peers = self._outcomes.elsewhere = None
        self._kv_events.ask_peers = no_peers
        self._outliers.set_ejected_by_peers(())
        if (controller := self._queueing.controller) is not None:
            controller.set_waiting_at_peers(())

    def _new_link(self, address: str, dialed: bool) -> PeerLink:
        subscriber = PickSubscriber(self._director.picks, self._datastore)
        link = PeerLink(address, self.publisher, subscriber, self._clock, dialed=dialed)
        link.on_entries = self._hear_entries
        return link

    def ended_elsewhere(self, entry: bytes) -> None:
        """An entry of an access log tells of a pick that is not ours: tell the peer whose name it has."""
        for link in self.connections.links.values():
            if link.name.encode() in entry:
                link.forward(entry)

    def _hear_entries(self, entries: Sequence[bytes]) -> None:
        """Entries about our picks, from the log of an Envoy that tells a peer."""
        ours = [entry for entry in entries if self._outcomes.name.encode() in entry]
        self._outcomes.hear(ours, self._clock())

    async def _share_seldom(self) -> Never:
        told: Sequence[Endpoint] = ()
        taught_at = self._clock()
        while True:
            await asyncio.sleep(_LOOK)
            if (ejected := self._outliers.ejected) != told:
                told = ejected
                self.publisher.ejected(ejected)
            controller = self._queueing.controller
            self.publisher.queued({} if controller is None else controller.waiting)
            if (now := self._clock()) - taught_at >= _TEACH:
                taught_at = now
                self.publisher.teach()
            self._heed()

    def _heed(self) -> None:
        """Apply what the others told that no pick of theirs says."""
        heard = [link.subscriber for link in self.connections.links.values()]
        self._outliers.set_ejected_by_peers(key for one in heard for key in one.ejected)
        fits = [one.learnt for one in heard if one.learnt is not None]
        if (controller := self._queueing.controller) is not None:
            controller.set_waiting_at_peers([one.waiting for one in heard if one.waiting])
        for producer in self._director.producers:
            if isinstance(producer, CostLearner):
                producer.use_peer_fits(fits)

    def _wake(self) -> None:
        asyncio.get_running_loop().call_later(TELL_INTERVAL, self._flush)

    def _flush(self) -> None:
        self.publisher.flush(self._clock())
        for link in self.connections.links.values():
            link.wake.set()
