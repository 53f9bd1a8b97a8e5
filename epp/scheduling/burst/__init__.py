"""Lets prompts of one moment that begin alike go to one endpoint, although no cache holds their beginning yet.

Prompts are held for a window, placed together, and then scored by where they were placed.
"""
