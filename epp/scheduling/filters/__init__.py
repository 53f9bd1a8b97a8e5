"""Filters: select the endpoints that may get a request. A filter returns a mask and never ranks."""
