"""The configuration file: what it may say, what that means, and when it is read again.

Every error names its place in the file.
"""
