"""Serves the HTTP pages of a dispatcher: the OpenAI-compatible front door, the page of its queues, health, readiness, metrics.

Who may see the page and how it stays current is in `adsum.web`.
"""
