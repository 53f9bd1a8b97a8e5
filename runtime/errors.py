"""The root of all errors that adsum raises on purpose; each package draws its own tree below it."""


class AdsumError(Exception):
    """The text is written for people: what was wrong, what was expected, what to do."""
