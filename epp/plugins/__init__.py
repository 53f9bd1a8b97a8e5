"""The declaration of a plugin: its type, roles, parameters, and what it needs of other plugins.

Built-in plugins and those of installed packages say it in the same words, beside their algorithms. Nothing here knows a plugin.
"""
