"""The Kubernetes API server: credentials, sessions, single requests, how it refuses, the objects that it sends.

Nothing here knows of LIST and WATCH, or of instances.
"""
