//! Families of models, as data over one decoder.
