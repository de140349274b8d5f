"""Watching: every step of a whole training, without a profiler, in a small file per rank."""
