//! The container boundary: discovery, rows, rollouts and the managed process.

pub mod task;

pub use task::{Contract, Dialect, Routes, Task, TaskRow};
