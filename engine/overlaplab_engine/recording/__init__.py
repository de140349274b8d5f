"""Writing runs: one trace file per rank, run.json, and the Recorder for other training loops."""
