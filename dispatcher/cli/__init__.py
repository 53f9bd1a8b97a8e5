"""The commands of `python -m dispatcher`: submit, status, cancel, dead-letters, and the dry run."""
