"""Runs one profile for long prompts and another one for all others."""

from collections.abc import Collection, Sequence

from pydantic import Field

from epp.extension import (
    InferenceRequest,
    Pick,
    PluginDeclaration,
    ProfileHandler,
    Rejection,
    Results,
    Role,
    Section,
)


class PromptParameters(Section):
    """`longPromptBytes` in the configuration: a prompt of more bytes is long."""

    long_prompt_bytes: int = Field(default=32_768, ge=1)


class LongPromptHandler(ProfileHandler):
    """Needs the profiles `long` and `short`."""

    def __init__(self, long_prompt_bytes: int) -> None:
        self._long_prompt_bytes = long_prompt_bytes

    def check(self, profiles: Collection[str]) -> None:
        if set(profiles) != {"long", "short"}:
            found = ", ".join(profiles)
            raise ValueError(f"acme-long-prompt-handler needs the profiles long and short, found {found}")

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        if results:
            return ()  # one profile was enough
        return ("long",) if request.prompt_size > self._long_prompt_bytes else ("short",)

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        ((profile, found),) = results.items()
        if isinstance(found, Rejection):
            raise found
        return Pick(request, found.endpoints, primary=profile)


HANDLER = PluginDeclaration(
    role=Role.HANDLER,
    parameters=PromptParameters,
    build=lambda given, context: LongPromptHandler(given.long_prompt_bytes),
)
