"""The main job on real parts: simulated workers, the picker and a real Envoy, and what may happen to them."""
