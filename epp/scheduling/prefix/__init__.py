"""Estimates which endpoint has the beginning of a prompt in its prefix cache, and scores endpoints by it.

The index, its blocks, and the data producer and scorer that use them. Pure.
"""
