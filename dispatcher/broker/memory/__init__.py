"""The broker of one process: tests, trials, a laptop. What it holds is lost with the process."""
