"""Several runs beside each other: comparisons, sweeps, spreads, and conditions on their differences."""
