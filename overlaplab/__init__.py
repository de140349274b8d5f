"""Exact compute/communication overlap analysis of torch.profiler traces."""
