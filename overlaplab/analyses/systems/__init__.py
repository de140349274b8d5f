"""Systems beyond an all-reduce of gradients: pipelines, servers, hops by hand, offloading, checkpointing, plans."""
