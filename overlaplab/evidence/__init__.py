"""What is known of labels, launches, collectives, clocks, gathers, DDP and FSDP2: read by analyses, shown by nobody."""
