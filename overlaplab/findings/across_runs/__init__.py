"""Several runs beside each other: comparisons and sweeps."""
