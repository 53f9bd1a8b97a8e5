"""The example project of docs/extending.md has tests of its own, which run where it is installed: test_extending.py."""

collect_ignore = ["acme"]
