"""A chat of many short messages while it waits for an endpoint, in no more memory than its body. Pure."""

from typing import Final

from epp.request.inference_api import ChatBody, Prompt

_MESSAGE_BYTES: Final = 200
"""That one decoded message takes beside its bytes in the body."""
_FEW: Final = 64
"""So few messages may take what they take."""


class HeldChat:
    """A `Prompt` that answers as the chat did from which it was made, and keeps none of its messages."""

    __slots__ = ("_extra_key", "_max_output_tokens", "_text", "model")

    def __init__(self, chat: ChatBody) -> None:
        self.model = chat.model
        self._text = chat.prefix(None)
        self._extra_key = chat.extra_key()
        self._max_output_tokens = chat.max_output_tokens()

    def prefix(self, limit: int | None) -> bytes:
        return self._text[:limit]

    def extra_key(self) -> bytes:
        return self._extra_key

    def max_output_tokens(self) -> int | None:
        return self._max_output_tokens


def while_it_waits(prompt: Prompt | None, body_size: int) -> Prompt | None:
    """The prompt itself, or the same in less memory if its messages take more than its body: clients choose how many wait."""
    if isinstance(prompt, ChatBody) and prompt.messages is not None:
        messages = len(prompt.messages)
        if messages > _FEW and messages * _MESSAGE_BYTES > body_size:
            return HeldChat(prompt)
    return prompt
