"""Plugins of Acme for adsum."""
