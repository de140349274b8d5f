"""Which settings would shorten the recorded steps: caps and prefetch depths, what remedies gain."""
