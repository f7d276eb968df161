"""Exact solvers: the plain iterations, the fast ones, and principal component pursuit."""
