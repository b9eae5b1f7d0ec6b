"""Parameter server: pull, gradient, push (Li et al., OSDI 2014)."""
