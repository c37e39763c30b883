//! What a comparison that runs by a schedule has found: one struct for the log, and for whoever counts.

/// A comparison of what must be there with what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReconcileReport {
    /// The destination, or the name of the query's entry.
    pub destination: String,
    /// When it ended, microseconds since 1970-01-01 UTC.
    pub at_us: i64,
    /// Ids that were asked for.
    pub checked: u64,
    /// Of those: not there. What was mended is among them.
    pub missing: u64,
    /// Of the missing: mended.
    pub fixed: u64,
    /// There more often than they were committed.
    pub duplicate: u64,
    /// There, and known to nobody.
    pub stray: u64,
    /// Why it came to no end: code and text. The figures mean nothing then.
    pub error: Option<(String, String)>,
}

impl ReconcileReport {
    /// Whether somebody has to look at it: something is missing and was not mended, or nobody knows what is there.
    pub fn needs_attention(&self) -> bool {
        self.error.is_none() && (self.missing > self.fixed || self.stray > 0)
    }

    /// Writes its line into the log of an outbox.
    pub fn log(&self, outbox: &str) {
        let Self { destination, checked, missing, fixed, duplicate, stray, .. } = self;
        if let Some((reason, text)) = &self.error {
            tracing::warn!(outbox, destination, code = "OUT-4051", reason, "reconcile came to no end: {text}");
        } else if *missing > 0 || *stray > 0 {
            tracing::warn!(
                outbox,
                destination,
                code = "OUT-4050",
                checked,
                missing,
                fixed,
                duplicate,
                stray,
                "reconcile has found something"
            );
        } else {
            tracing::info!(outbox, destination, checked, duplicate, "reconcile has found nothing missing");
        }
    }
}
