"""Which version of adsum is installed. importlib.metadata takes 10 ms to import, so only who asks pays."""


def installed_version() -> str | None:
    """None: it runs from a checkout that nobody installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("adsum")
    except PackageNotFoundError:
        return None
