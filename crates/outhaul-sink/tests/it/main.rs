//! The sinks, and their conformance suite.
