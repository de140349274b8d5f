"""An instrumented data-parallel engine on torch.distributed."""
