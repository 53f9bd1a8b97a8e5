"""What is wrong with a configuration, apart from what it takes to read one."""


class DispatcherConfigError(ValueError):
    """The configuration is not sound; the text names the place and what could stand there, and quotes no secret."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
