"""Lets the shortest prompt of a flow go first."""

from epp.extension import OrderingPolicy, PluginDeclaration, QueuedRequest, Role


class ShortestPromptFirst(OrderingPolicy):
    """The lowest rank goes first, equal ones in the order of arrival."""

    def rank(self, queued: QueuedRequest) -> float:
        return queued.request.prompt_size


ORDERING = PluginDeclaration(role=Role.ORDERING, build=lambda given, context: ShortestPromptFirst())
