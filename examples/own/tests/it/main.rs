//! The example crate: its parts alone, its training on several meshes, its command
//! line, and what happens if an extension is wrong.

mod bad_extensions;
mod command_line;
mod hub;
mod resume;
mod runs;
mod scan;
mod training;
