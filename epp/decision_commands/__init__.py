"""`epp decisions` and `epp explain`: what a running picker is asked over HTTP, and how its answers are shown.

They know the picker by its JSON only (docs/decisions.md), and nothing that picks lives here.
"""
