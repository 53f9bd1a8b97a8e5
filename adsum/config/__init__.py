"""Reads configuration documents: YAML and JSON, strictly, with all problems reported at once, each with its place.

The schemas live in the programs; nothing here knows a section by name.
"""
