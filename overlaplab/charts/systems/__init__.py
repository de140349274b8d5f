"""Charts of systems beyond an all-reduce of gradients: pipelines, servers, hops by hand, plans."""
