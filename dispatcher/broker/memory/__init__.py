"""The broker within one process, for tests and trials. Its content is lost when the process ends."""
