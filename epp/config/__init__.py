"""Reads and checks the configuration file and the flags, and builds the plugins that they name.

Every error names its place in the file. Nothing here opens a socket.
"""
