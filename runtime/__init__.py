"""Building blocks of all programs: command line, configuration, signals, tasks, threads, HTTP/1.1, served pages.

Nothing here knows of inference, and nothing here imports another package of adsum.
"""
