"""Which endpoint gets a request: admission, filters, scorers, pickers and the profile that runs them.

Plugins see columns of the pool and a request. Nothing here reads a socket or a clock: time is passed in.
"""
