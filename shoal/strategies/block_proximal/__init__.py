"""Block-proximal: sparse logistic regression, block by block (Li et al., 2014)."""
