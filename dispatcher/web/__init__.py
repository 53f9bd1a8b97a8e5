"""Serves the HTTP pages of a dispatcher: the OpenAI-compatible front door, the page of its queues, health, readiness, metrics.

`adsum.web` decides who may see the page and how it stays current.
"""
