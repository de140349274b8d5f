"""The small models to record, their batches, and the units that their parameters form."""
