//! Tokenizers, chat templates, and what GGUF files say about themselves.
