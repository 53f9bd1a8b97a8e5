"""Scorers: rate each endpoint for a request, from 0 to 1. A scorer never excludes."""
