"""What the pages cost their programs: processor time with and without open browsers, in turns.

`python -m benchmarks.open_page [picker|discovery|dispatcher ...]`. No tests, no figures: those are in benchmarks/README.md.
"""
