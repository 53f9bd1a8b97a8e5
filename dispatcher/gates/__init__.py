"""Gates decide whether a queued request may be sent now. `dispatcher.gates.gate` is their protocol."""
