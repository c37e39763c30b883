//! Faults that are built in on purpose, so that tests can prove that the simulator finds them.
//!
//! Without the feature `faults` there is no way to switch one on: [`Faults`] is empty and [`Faults::has`] is a constant.

/// A fault, named after what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A checkpoint names a range to delete that spans numbers which were not read.
    DeletesOverGaps,
    /// A lane's cursor is stored past messages that were sent and not acknowledged.
    CursorPastUnacknowledged,
    /// The resolved mark is raised over open transactions.
    LateCommitIgnored,
    /// Moved rows are forgotten at the commit, though a read that began before may still show them.
    MovedForgottenAtCommit,
    /// Receipts and cursors are written above the log end that their checkpoint commits.
    ReceiptsAboveLogEnd,
    /// A message that is tried again in place no longer holds back later ones of its key.
    RetryOvertaken,
    /// A send begins though its answer could come after the lease.
    LeaseNotChecked,
    /// Rows are sent ahead before a checkpoint of the epoch has committed.
    SendAheadUnproven,
    /// A COMMIT without an answer is taken for one that was not written.
    UnknownTakenForNotWritten,
    /// The cursor passes a parked message, and its row is not written.
    ParkedRowNotWritten,
    /// Keys that are blocked by parked messages are not known after a recovery.
    BlocksNotRecovered,
    /// A lane sends after a start of its destination before it was found out what the destination remembers.
    SentUnverified,
    /// What a destination has forgotten is not sent again.
    ForgottenIgnored,
    /// A lane that goes back keeps positions as settled that were forgotten.
    RewindKeepsAhead,
    /// Everything counts as proven once it is acknowledged.
    ProvenFollowsCursor,
    /// A skipped message lets later ones of its key go on before the skip is stored.
    SkipNotAwaited,
    /// A skip is recorded, and what it names is kept.
    SkipForgotten,
    /// A redriven message stays dead.
    RedriveIgnored,
    /// An edit is recorded, and the original is sent.
    EditIgnored,
    /// What was edited and then forgotten by its destination is sent again as it was before the edit.
    EditForgotten,
    /// A parked message goes although the lane has not come to what is older.
    RedriveOvertakes,
    /// What a drop gives up is not recorded.
    DropNotRecorded,
    /// A destination is dropped, and its lane is carried along.
    DropKeepsLane,
    /// A destination is dropped, and what is parked for it stays.
    DropKeepsParked,
    /// A destination is dropped, and its pause stays.
    DropKeepsPause,
    /// A destination is dropped by an owner that delivers to it.
    DropUnasked,
    /// A paused lane sends on.
    PauseIgnored,
    /// What is paused is not known after a recovery.
    PauseNotRecovered,
    /// Scheduled rows that an earlier owner has seen are not looked for.
    ScheduleNotRecovered,
    /// Scheduled rows are taken before what had committed when they became due.
    DueOvertakes,
    /// An owner that drains leaves behind what the database has made ordinary for it.
    DueLeftBehind,
    /// Each lane of a destination has the rate for itself.
    RatePerLane,
    /// Each instance has the rate for itself.
    RateNotShared,
    /// A batch with messages that were tried before does not count as under way.
    RetryNotCounted,
    /// Where a destination has limits, the first slot of the first shard is served first, every time.
    NoTurns,
    /// A replay's position is stored past messages that were sent and not acknowledged.
    ReplayPastUnacknowledged,
    /// A message that a replay tries again does not hold back later ones of its key.
    ReplayRetryOvertaken,
    /// What a destination has forgotten is not sent again by a replay.
    ReplayForgottenIgnored,
    /// A process that was told that another carries out its replay goes on storing.
    ReplayTakenIgnored,
}

/// The faults that are switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    #[cfg(feature = "faults")]
    on: u64,
}

impl Faults {
    /// None.
    pub const NONE: Self = Self {
        #[cfg(feature = "faults")]
        on: 0,
    };

    /// One.
    #[cfg(feature = "faults")]
    pub const fn only(fault: Fault) -> Self {
        Self { on: 1 << fault as u32 }
    }

    /// Whether a fault is switched on.
    #[cfg(feature = "faults")]
    pub const fn has(self, fault: Fault) -> bool {
        self.on >> fault as u32 & 1 == 1
    }

    /// Whether a fault is switched on.
    #[cfg(not(feature = "faults"))]
    pub const fn has(self, _: Fault) -> bool {
        false
    }
}
