//! An OpenAI-compatible server over a loaded model.
