//! Carrying out a run: observe, decide, store, send.
