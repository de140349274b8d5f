"""The buckets that would make a recorded run's steps shortest: all caps, the best cutting, the least of all."""
