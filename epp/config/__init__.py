"""What an operator says: the configuration file and the flags, checked, and the plugins built from them.

Every error names its place in the file. Nothing here opens a socket.
"""
