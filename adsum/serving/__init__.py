"""Listening sockets, the acceptor with its limits of connections, and aiohttp pages within these limits.

Shared by all ports of all programs; nothing here knows what a port serves.
"""
