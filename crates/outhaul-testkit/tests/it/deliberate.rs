//! Faults that are built in on purpose: each must be found, and by the rule that is meant for it.

use outhaul_core::faults::Fault;
use outhaul_testkit::simulator::{Deliberate, Scenario, run};

/// Within so many seeds every fault must be found.
const SEEDS: u64 = 200;

fn is_found(fault: Deliberate, scenario: &Scenario, rule: &str) {
    let failures = (0..SEEDS).filter_map(|seed| run(scenario, seed, Some(fault)).err());
    let mut others = Vec::new();
    for failure in failures {
        if failure.what.contains(rule) {
            assert!(!failure.trace.is_empty() && failure.to_string().contains("OUTHAUL_SEED="));
            return;
        }
        others.push(failure.what);
    }
    panic!("{fault:?} is not found by its rule within {SEEDS} seeds of {}, but by: {others:#?}", scenario.name);
}

#[test]
fn delete_by_range_over_a_gap() {
    is_found(Deliberate::Core(Fault::DeletesOverGaps), &Scenario::TRANSACTIONS, "a range to delete covers");
}

#[test]
fn cursor_past_an_unacknowledged_message() {
    let rule = "which is neither delivered nor parked";
    is_found(Deliberate::Core(Fault::CursorPastUnacknowledged), &Scenario::DESTINATIONS, rule);
}

#[test]
fn epoch_not_checked() {
    is_found(Deliberate::EpochNotChecked, &Scenario::OWNERS, "is fenced, and its checkpoint");
}

#[test]
fn late_commit_ignored() {
    is_found(Deliberate::Core(Fault::LateCommitIgnored), &Scenario::TRANSACTIONS, "order of key");
}

#[test]
fn moved_forgotten_while_a_read_is_under_way() {
    let rule = "whose receipt is stored";
    is_found(Deliberate::Core(Fault::MovedForgottenAtCommit), &Scenario::TRANSACTIONS, rule);
}

#[test]
fn receipts_above_the_log_end() {
    is_found(Deliberate::Core(Fault::ReceiptsAboveLogEnd), &Scenario::DESTINATIONS, "where the log has not got to");
}

#[test]
fn retry_overtaken_by_a_later_message_of_its_key() {
    is_found(Deliberate::Core(Fault::RetryOvertaken), &Scenario::DESTINATIONS, "order of key");
}

#[test]
fn lease_not_checked_before_a_send() {
    is_found(Deliberate::Core(Fault::LeaseNotChecked), &Scenario::OWNERS, "but holds it until");
}

#[test]
fn send_ahead_before_the_epoch_is_proven() {
    let rule = "sends before a checkpoint of epoch";
    is_found(Deliberate::Core(Fault::SendAheadUnproven), &Scenario::OWNERS, rule);
}

#[test]
fn unknown_commit_taken_for_not_written() {
    is_found(Deliberate::Core(Fault::UnknownTakenForNotWritten), &Scenario::DATABASE, "other than it left it");
}

#[test]
fn parked_row_not_written() {
    let rule = "which is neither delivered nor parked";
    is_found(Deliberate::Core(Fault::ParkedRowNotWritten), &Scenario::DESTINATIONS, rule);
}

#[test]
fn blocked_keys_not_loaded_at_recovery() {
    is_found(Deliberate::Core(Fault::BlocksNotRecovered), &Scenario::EVERYTHING, "order of key");
}

#[test]
fn gaps_and_tail_read_by_two_statements() {
    is_found(Deliberate::GapsAndTailApart, &Scenario::TRANSACTIONS, "order of key");
}

#[test]
fn sent_before_it_is_known_what_was_forgotten() {
    is_found(Deliberate::Core(Fault::SentUnverified), &Scenario::FORGETFUL, "order of key");
}

#[test]
fn what_was_forgotten_is_ignored() {
    is_found(Deliberate::Core(Fault::ForgottenIgnored), &Scenario::FORGETFUL, "stored 0 times");
}

#[test]
fn what_was_forgotten_is_kept_as_settled() {
    is_found(Deliberate::Core(Fault::RewindKeepsAhead), &Scenario::FORGETFUL, "stored 0 times");
}

#[test]
fn proven_as_soon_as_it_is_acknowledged() {
    is_found(Deliberate::Core(Fault::ProvenFollowsCursor), &Scenario::FORGETFUL, "is not flushed");
}

#[test]
fn what_was_skipped_is_kept() {
    is_found(Deliberate::Core(Fault::SkipForgotten), &Scenario::ACTS, "was skipped");
}

#[test]
fn the_next_of_a_key_goes_on_before_a_skip_is_stored() {
    is_found(Deliberate::Core(Fault::SkipNotAwaited), &Scenario::ACTS, "order of key");
}

#[test]
fn a_redriven_message_stays_dead() {
    is_found(Deliberate::Core(Fault::RedriveIgnored), &Scenario::ACTS, "is dead without a try");
}

#[test]
fn the_original_is_sent_after_an_edit() {
    is_found(Deliberate::Core(Fault::EditIgnored), &Scenario::ACTS, "other than it was written");
}

#[test]
fn the_original_is_sent_again_after_an_edit_was_forgotten() {
    is_found(Deliberate::Core(Fault::EditForgotten), &Scenario::ACTS_FORGOTTEN, "other than it was written");
}

#[test]
fn a_redriven_message_goes_before_older_ones_of_its_key() {
    is_found(Deliberate::Core(Fault::RedriveOvertakes), &Scenario::ACTS_ALONE, "order of key");
}

#[test]
fn a_paused_lane_sends_on() {
    is_found(Deliberate::Core(Fault::PauseIgnored), &Scenario::ACTS, "which is paused");
}

#[test]
fn the_next_owner_does_not_know_what_is_paused() {
    is_found(Deliberate::Core(Fault::PauseNotRecovered), &Scenario::ACTS, "which is paused");
}

#[test]
fn what_is_scheduled_is_not_known_to_the_next_owner() {
    is_found(Deliberate::Core(Fault::ScheduleNotRecovered), &Scenario::SCHEDULED, "not settled after");
}

#[test]
fn what_is_due_goes_before_what_was_there() {
    is_found(Deliberate::Core(Fault::DueOvertakes), &Scenario::SCHEDULED, "and is stored before");
}

#[test]
fn what_is_due_is_left_behind_at_a_hand_over() {
    let rule = "which was due earlier";
    is_found(Deliberate::Core(Fault::DueLeftBehind), &Scenario::SCHEDULED_HANDOVERS, rule);
}

#[test]
fn what_is_scheduled_is_sent_at_once() {
    is_found(Deliberate::DueNotAwaited, &Scenario::SCHEDULED, "before it is due");
}

#[test]
fn what_is_due_can_still_be_cancelled() {
    is_found(Deliberate::DueNotClaimed, &Scenario::SCHEDULED, "cancelled");
}

#[test]
fn each_lane_has_the_rate_for_itself() {
    is_found(Deliberate::Core(Fault::RatePerLane), &Scenario::LIMITED, "is beyond the rate");
}

#[test]
fn each_instance_has_the_rate_for_itself() {
    is_found(Deliberate::Core(Fault::RateNotShared), &Scenario::LIMITED, "all together are beyond the rate");
}

#[test]
fn a_batch_that_is_tried_again_does_not_count_as_under_way() {
    is_found(Deliberate::Core(Fault::RetryNotCounted), &Scenario::LIMITED, "batches under way");
}

#[test]
fn slots_do_not_take_turns() {
    is_found(Deliberate::Core(Fault::NoTurns), &Scenario::LIMITED, "is left out");
}

#[test]
fn a_replay_is_stored_past_an_unacknowledged_message() {
    let rule = "but m";
    is_found(Deliberate::Core(Fault::ReplayPastUnacknowledged), &Scenario::REPLAYS, rule);
}

#[test]
fn a_replayed_message_is_overtaken_by_a_later_one_of_its_key() {
    is_found(Deliberate::Core(Fault::ReplayRetryOvertaken), &Scenario::REPLAYS, "within replay");
}

#[test]
fn what_was_forgotten_is_not_replayed_again() {
    is_found(Deliberate::Core(Fault::ReplayForgottenIgnored), &Scenario::REPLAYS, "of it is not flushed");
}

#[test]
fn a_process_stores_on_after_its_replay_was_taken_over() {
    is_found(Deliberate::Core(Fault::ReplayTakenIgnored), &Scenario::REPLAYS, "though it was told");
}

#[test]
fn who_stores_how_far_a_replay_has_got_is_not_checked() {
    is_found(Deliberate::RunnerNotChecked, &Scenario::REPLAYS, "which another has taken over");
}

#[test]
fn what_a_drop_gives_up_is_not_recorded() {
    is_found(
        Deliberate::Core(Fault::DropNotRecorded),
        &Scenario::DROPPED,
        "stored 0 times, receipt false, parked None",
    );
}

#[test]
fn a_drop_leaves_something_behind() {
    for (fault, rule) in [
        (Fault::DropKeepsLane, "its lane stays"),
        (Fault::DropKeepsParked, "something stays parked for it"),
        (Fault::DropKeepsPause, "it stays paused"),
        (Fault::DropUnasked, "its owner delivers to it"),
    ] {
        is_found(Deliberate::Core(fault), &Scenario::DROPPED, rule);
    }
}

#[test]
fn shards_are_changed_under_open_transactions() {
    is_found(Deliberate::ReshardNotAwaited, &Scenario::RESHARDED, "order of key");
}

#[test]
fn shards_are_changed_before_all_is_settled() {
    is_found(Deliberate::ReshardUnsettled, &Scenario::RESHARDED, "order of key");
}

#[test]
fn shards_are_changed_before_all_is_proven() {
    is_found(Deliberate::ReshardUnproven, &Scenario::RESHARDED, "when its key may change its shard");
}

#[test]
fn shards_are_changed_beside_relays() {
    is_found(Deliberate::ReshardUnowned, &Scenario::RESHARDED, "while all is changed to");
}

#[test]
fn a_change_of_the_expression_that_was_not_answered_is_taken_back() {
    is_found(Deliberate::ReshardTakenBack, &Scenario::RESHARDED, "and the expression makes");
}

#[test]
fn a_relay_takes_shards_while_they_are_changed() {
    is_found(Deliberate::ReshardNotSeen, &Scenario::RESHARDED, "while all is changed to");
}
