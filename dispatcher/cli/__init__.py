"""The commands for people: submit, status, cancel, dead-letters, and a dry run."""
