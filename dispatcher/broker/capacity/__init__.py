"""How much of a target may be used: the dispatch budget, what others leave to us, and what is in flight (pure)."""
