//! What a run leaves behind as files: its directory, feeds, manifest, registries and charts.
