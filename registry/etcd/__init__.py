"""Registers workers in etcd: one key each, which hangs on a lease that the worker keeps alive.

Only this package writes to etcd; `discovery.etcd` reads, and has the client of both.
"""
