"""Adds for `make docs` to mkdocs: the repository's pages outside docs/, and the references generated from the code.

No text for readers lives here but the frame of what is generated; pages are in docs/.
"""
