"""What a recording leaves: labels in a trace, one trace file per rank, run.json, and the Recorder."""
