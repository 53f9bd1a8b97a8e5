"""Chooses the endpoint for a request: admission, filters, scorers, pickers and the profile that runs them.

Plugins get the request and the columns of the pool. Nothing here reads a socket or a clock: time is passed in.
"""
