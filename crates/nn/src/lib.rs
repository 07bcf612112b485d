//! One configurable decoder, and what runs it.
