"""A demo of the dispatcher: a batch in the spare capacity of the demo's pool, beside interactive users."""
