"""May a queued request go now? One idea a file; `dispatcher.gates.gate` has the words."""
