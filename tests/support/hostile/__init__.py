"""What a reader must survive: bombs, mutations, attacks in every string."""
