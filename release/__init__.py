"""Makes the archives for those who install adsum, and proves that they install. `python -m release`, `make dist`.

`site` makes the documentation site (`make docs`).
"""
