//! Questions to two views that say something together.
