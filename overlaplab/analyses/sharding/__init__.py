"""Sharded parameters: when units are gathered, used and freed, and their gradients reduce-scattered."""
