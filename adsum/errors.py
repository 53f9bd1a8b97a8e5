"""`AdsumError`, the base class of the errors that adsum raises on purpose."""


class AdsumError(Exception):
    """The text is for users: the problem, what was expected, what to do."""
