"""GPUs, real and imitated: streams, clocks, memory."""
