"""The pages below `docs/` that are generated: one module each, and a reader of the Rust source that they share."""
