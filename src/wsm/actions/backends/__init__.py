"""Surfaces for real engines. The only place below the rollout group where paddle is imported, lazily."""
