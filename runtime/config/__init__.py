"""Configuration documents: YAML and JSON read strictly, and every problem told with its place, all of them at once.

What a document may say is its program's; nothing here knows a section by name.
"""
