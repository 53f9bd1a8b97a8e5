"""What is known of one worker that is asked again and again, and what follows from its answers. Decides, does no I/O."""

from dataclasses import dataclass, field, replace

from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import Instance, MetadataReader
from discovery.metadata.document import NO_DOCUMENT, MetadataDocument
from discovery.metadata.schedule import Pace
from discovery.metadata.served_at import serving_port

UNASKED = "it has not answered yet"


@dataclass(slots=True, eq=False)
class Followed:
    """One instance under observation: its last good document, or why there is none.

    `needs_document`: it registered itself, so it is told once its document is in. One that is listed is told whatever
    it answers, and its silence counts only after it was heard once: many model servers know no such page.
    """

    instance: Instance
    needs_document: bool = True
    document: MetadataDocument | None = None
    reachable: bool = True
    was_heard: bool = False
    """Something answered there in HTTP, whatever it said."""
    silent: bool = False
    """It was heard, and nothing answers there any more."""
    pace: Pace = field(default_factory=Pace)
    problem: str | None = UNASKED

    @property
    def is_told(self) -> bool:
        """Whether those who want documents know of it."""
        return self.document is not None

    def told(self, reader: MetadataReader) -> Instance | None:
        """The instance as those who want documents are told it."""
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
        except RecursionError:  # it nests as deeply as it may where the stack is less deep
            return None

    def listens(self) -> bool:
        """Somebody listens there: that is all it takes where it is listed. Whether anything changed for those who want
        documents."""
        if self.needs_document:
            return False
        before = self.document, self.reachable
        self.document = self.document or NO_DOCUMENT
        self.reachable = self.document.ready
        return before != (self.document, self.reachable)

    def answered(self, document: MetadataDocument) -> bool:
        """A document came; whether anything changed for those who want documents."""
        self.was_heard, self.silent = True, False
        self.problem = None if document.ready else "the worker itself says that it is not ready"
        if document == self.document and self.reachable == document.ready:
            return False
        if document.ready and self.document is not None and not self.document.ready:
            self.pace.forgive()  # a worker that drains holds nothing; one that is back may hold again
        self.document, self.reachable = document, document.ready
        return True

    def failed(self, error: MetadataUnavailableError, problem: str) -> bool:
        """No document came, `problem` says why; whether anything changed for those who want documents."""
        self.problem = problem
        if isinstance(error, WorkerUnreachableError):
            return self._missed(error)
        if not error.connected:
            return False
        self.was_heard, self.silent = True, False
        return self.listens()

    def _missed(self, error: WorkerUnreachableError) -> bool:
        """Nothing answered. Who listens and was never heard may know nothing of metadata; it is not called silent."""
        self.silent = self.was_heard
        if error.connected and not self.was_heard and not self.needs_document:
            return self.listens()
        was, self.reachable = self.reachable, False
        return was and self.is_told
