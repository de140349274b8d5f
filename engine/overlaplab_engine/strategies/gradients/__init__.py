"""Gradients, whatever averages them: when autograd has one, and the buckets in which they travel."""
