"""What the tensor-parallel strategies share: which parameters are cut, and what follows for options and gradients."""
