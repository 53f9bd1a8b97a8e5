"""Profile handlers: decide which profiles run for a request, and combine their results."""
