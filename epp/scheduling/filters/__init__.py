"""Filters: which endpoints may get a request. A filter answers with a mask and never ranks."""
