"""One rank's step: what was exposed, why, how short it could have been, and what to do; the verdict on it."""
