"""The gates of this package. `dispatcher.gates.building` puts them together."""
