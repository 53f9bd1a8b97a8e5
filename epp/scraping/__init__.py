"""Scrapes the workers' metrics pages: when a page is fetched, how, and which of its series are read.

What the numbers mean for a pick is decided in `epp.scheduling`.
"""
