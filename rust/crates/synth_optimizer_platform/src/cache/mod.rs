//! The request cache: answers of container and proposer by the exact key of what was asked.
