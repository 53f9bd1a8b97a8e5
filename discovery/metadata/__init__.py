"""Reads what workers say of themselves at `/metadata`: connections, conditional and held GETs, checks, changes."""
