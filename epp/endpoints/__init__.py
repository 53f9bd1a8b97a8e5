"""Who can serve: endpoints, the pool they form, and the store that keeps both current.

Discovery's events arrive here. Metrics pages are read in `epp.scraping`, decisions are made in `epp.scheduling`.
"""
