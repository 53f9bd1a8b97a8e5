"""The state of one followed worker: its document and reachability, and how each answer or failure changes them. No I/O."""

from dataclasses import dataclass, field, replace

from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import Instance, MetadataReader
from discovery.metadata.document import NO_DOCUMENT, MetadataDocument
from discovery.metadata.schedule import FetchSchedule
from discovery.metadata.serving_port import serving_port

NO_ANSWER_YET = "it has not answered yet"


@dataclass(slots=True, eq=False)
class FollowedWorker:
    """One instance, its last valid document, and why there is none.

    `needs_document`: it registered itself, so it is published once its document has arrived. A listed instance is
    published whatever it answers, and its silence counts only after its first answer: many model servers have no
    `/metadata`.
    """

    instance: Instance
    needs_document: bool = True
    document: MetadataDocument | None = None
    reachable: bool = True
    has_answered: bool = False
    """Any HTTP answer counts."""
    silent: bool = False
    """It has answered, and does not any more."""
    schedule: FetchSchedule = field(default_factory=FetchSchedule)
    problem: str | None = NO_ANSWER_YET

    @property
    def is_published(self) -> bool:
        """Whether watches with metadata have it."""
        return self.document is not None

    def published_instance(self, reader: MetadataReader) -> Instance | None:
        """The instance as watches with metadata have it; None before it is published."""
        if self.document is None:
            return None
        return replace(
            self.instance,
            revision=self.document.revision,
            serving_port=self._serving_port(self.document),
            reachable=self.reachable,
            reader=reader,
        )

    def _serving_port(self, document: MetadataDocument) -> int | None:
        try:
            return serving_port(self.instance, document.metadata())
        except RecursionError:  # `read_document` accepted it on a stack that was less deep
            return None

    def accepted_connection(self) -> bool:
        """Publish a listed instance: its server accepts connections. Returns whether watches with metadata change."""
        if self.needs_document:
            return False
        before = self.document, self.reachable
        # the last document stays: a listed server that fails for a moment keeps its models
        self.document = self.document or NO_DOCUMENT
        self.reachable = self.document.ready
        return before != (self.document, self.reachable)

    def answered(self, document: MetadataDocument) -> bool:
        """A document arrived. Returns whether watches with metadata change."""
        self.has_answered, self.silent = True, False
        self.problem = None if document.ready else "the worker itself says that it is not ready"
        if document == self.document and self.reachable == document.ready:
            return False
        if document.ready and self.document is not None and not self.document.ready:
            self.schedule.reset_holding()  # a draining worker refuses to hold GETs
        self.document, self.reachable = document, document.ready
        return True

    def failed(self, error: MetadataUnavailableError, problem: str) -> bool:
        """No document arrived, `problem` says why. Returns whether watches with metadata change."""
        self.problem = problem
        if isinstance(error, WorkerUnreachableError):
            return self._unreachable(error)
        if not error.connected:
            return False
        self.has_answered, self.silent = True, False
        return self.accepted_connection()

    def _unreachable(self, error: WorkerUnreachableError) -> bool:
        """Nothing answered. A listed server that accepts connections and never answered may not know `/metadata`."""
        self.silent = self.has_answered
        if error.connected and not self.has_answered and not self.needs_document:
            return self.accepted_connection()
        was, self.reachable = self.reachable, False
        return was and self.is_published
