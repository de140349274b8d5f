"""What strategies share that shard: who owns which part, when it is there, and the order of collectives."""
