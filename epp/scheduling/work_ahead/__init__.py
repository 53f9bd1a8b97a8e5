"""How much work each endpoint has ahead of it, and the scorer that picks the cheapest endpoint."""
