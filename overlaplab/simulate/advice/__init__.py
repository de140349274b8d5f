"""Settings that would shorten the recorded steps, caps and prefetch depths, and what remedies gain."""
