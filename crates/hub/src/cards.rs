//! Cards, the stores they come from, and names of models.
