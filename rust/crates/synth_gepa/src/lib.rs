//! GEPA as a pure function.
