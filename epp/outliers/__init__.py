"""Which endpoints fail or stall, and are ejected for a while; how new and recovered ones are warmed up. Pure.

May not live here: what a request is, how the picker asks a worker (`epp/scraping`), how a pick is made (`epp/scheduling`).
"""
