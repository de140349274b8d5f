"""Systems beyond an all-reduce of gradients: pipelines, servers, hops by hand, measured links, plans."""
