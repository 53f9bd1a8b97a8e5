"""Registers workers in a directory: one record each, and a lock that proves that the record's owner lives.

Only this package writes below a root; `discovery.filesystem` only reads.
"""
