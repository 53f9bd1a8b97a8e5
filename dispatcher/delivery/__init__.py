"""Delivers one claimed request to its target: the POST, the meaning of its answer, the time of a retry."""
