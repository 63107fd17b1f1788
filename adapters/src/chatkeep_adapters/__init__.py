"""Agent frameworks remember in chatkeep: one package for each framework, which imports it."""
