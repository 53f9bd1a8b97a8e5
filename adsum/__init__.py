"""The ground of all programs: command line, configuration, signals, tasks, threads, HTTP/1.1, served pages, traces.

Nothing here knows of inference, and nothing here imports another package of adsum, except for the command `adsum`
(`__main__.py`), which starts the program that it is given.
"""
