"""What is made for those who install adsum: the archives, and proof that they install. `python -m release`, `make dist`.

`site` makes the documentation site (`make docs`).
"""
