"""The pages of a dispatcher: the OpenAI-compatible way in, health and readiness."""
