"""The reader of answers: the tokens that it says were used.

Here lives what answers say, read from bytes in any pieces. Nothing here waits, changes an answer, or knows of Envoy.
"""
