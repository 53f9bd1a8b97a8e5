"""Profile handlers: which profiles a request passes, and what their choices together mean."""
