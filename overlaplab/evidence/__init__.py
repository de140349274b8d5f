"""Labels, launches, collectives, clocks, gathers, DDP and FSDP2 as analyses use them; not shown to users."""
