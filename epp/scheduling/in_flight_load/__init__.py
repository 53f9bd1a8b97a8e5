"""Requests and tokens in flight, counted as the Go picker counts them, and the plugins that decide by these numbers.

A request counts from its pick to its end, its tokens until the first piece of its answer.
"""
