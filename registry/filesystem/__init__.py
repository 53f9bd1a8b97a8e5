"""Membership by a file: the record that discovery reads, and the lock that proves that its owner lives.

Only this package writes below a root; `discovery.filesystem` reads.
"""
