"""Endpoints, the pool that they form, and the datastore that keeps both current.

Discovery's events arrive here. Metrics pages are read in `epp.scraping`, decisions are made in `epp.scheduling`.
"""
