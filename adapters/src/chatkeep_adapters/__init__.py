"""Agent frameworks remember in chatkeep: one module or package for each framework, which imports it."""
