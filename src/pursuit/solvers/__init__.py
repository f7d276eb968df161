"""Exact solvers: the plain iterations, the fast ones, and the convex robust PCA."""
