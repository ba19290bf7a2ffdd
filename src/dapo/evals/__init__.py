"""Evaluation: avg@k, pass@k and maj@k with intervals; comparison of two evaluations."""
