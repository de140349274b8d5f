"""What strategies share that average buckets of gradients while the backward pass goes on."""
