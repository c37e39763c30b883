//! The contract of `Store` and `Inbox`, case by case: every database passes all of it on its real server.
//!
//! A store's tests say `outhaul_testkit::store_suite!(Flavour::MariaDb);` once a flavour, each in a module of its own,
//! and get one `#[tokio::test]` a case. A new case is a `pub async fn` in one of the themes, and its name in the list
//! below; no store's tests have to be touched. Every case makes a fresh database of its own.

use std::time::Duration;

pub mod acts;
pub mod checkpoint;
pub mod fencing;
mod fixture;
pub mod inbox;
pub mod inbox_places;
pub mod lease;
pub mod maintain;
pub mod parked;
pub mod read;
pub mod recovery;
pub mod resolved;
pub mod scheduled;
pub mod schema;
pub mod status_find;
pub mod status_table;
pub mod transaction;
pub mod upgrade;

pub use fixture::{AppRow, Fixture, Owner, message_of, shards_of};

/// Limit of a case: a wait that never ends is a failure of its own, not of the whole run.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// Runs a case within its limit.
///
/// # Panics
/// The limit ran out.
pub async fn within_limit(case: impl Future<Output = ()>) {
    // On the heap: what a case awaits, deep down, is large.
    let done = tokio::time::timeout(CASE_LIMIT, Box::pin(case)).await;
    assert!(done.is_ok(), "the case did not end within {} s", CASE_LIMIT.as_secs());
}

/// Makes the macro that makes the tests. `$d` stands for a dollar sign in what it makes.
macro_rules! cases {
    ($d:tt $($theme:ident { $($case:ident)* })*) => {
        /// One test for each case of the conformance suite, for one flavour of database.
        #[macro_export]
        macro_rules! store_suite {
            ($d flavour:expr) => {
                $($(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        $d crate::store_suite::within_limit($d crate::store_suite::$theme::$case($d flavour)).await;
                    }
                )*)*
            };
        }
    };
}

cases! { $
    schema {
        init_makes_all_that_inspect_wants
        init_may_be_repeated
        the_ddl_can_be_run_by_hand
        the_payload_type_is_found
        another_schema_is_refused
        an_impossible_plan_is_refused
        what_is_missing_is_named
        two_outboxes_share_a_database
        the_password_is_never_shown
        every_shard_has_a_lease
        rows_in_no_shard_are_said
    }
    status_table {
        every_row_is_handed_out_once
        a_backlog_comes_in_order
        a_time_in_the_future_blinds_no_poll
    }
    upgrade {
        earlier_tables_are_brought_up
        only_earlier_tables_are_brought_up
        an_upgrade_waits_for_relays
    }
    read {
        a_row_comes_as_it_was_written
        rows_without_an_id_get_one_each
        rows_rise_over_all_shards
        only_the_wanted_shards_are_read
        only_the_wanted_ranges_are_read
        a_limit_cuts_at_the_end
        bytes_cut_at_the_end
        a_payload_above_the_limit_is_not_fetched
        rows_of_the_future_are_left_out
        an_open_transaction_is_neither_seen_nor_waited_for
        what_was_rolled_back_never_comes
        one_id_twice_is_two_rows
        text_that_is_not_utf8_is_a_defect
        a_row_without_a_topic_is_a_defect
        headers_come_as_json
        headers_count_against_the_bytes
        headers_above_the_limit_are_not_fetched
        columns_may_have_other_names
        a_sequence_may_start_again
        a_sequence_may_jump
    }
    resolved {
        nothing_open_is_resolved
        what_has_ended_is_resolved
        a_sequence_that_starts_again_resolves_anew
    }
    checkpoint {
        moves_exactly_the_rows_that_it_names
        the_order_is_that_of_the_positions
        a_row_in_a_gap_is_not_deleted
        an_open_row_is_not_waited_for
        a_run_over_several_shards_takes_its_own_rows
        all_shards_go_in_one_checkpoint
        a_large_checkpoint
        rows_that_stand_alone
        a_seq_given_again_is_a_mismatch
        one_row_that_differs_is_a_mismatch
        another_number_or_log_end_is_a_mismatch
        one_bad_shard_does_not_hold_back_the_others
        receipts_alone
        large_messages_have_chunks_to_themselves
        lanes_are_stored_as_they_stand
    }
    fencing {
        only_the_owner_writes
        an_expired_lease_that_nobody_took_covers
        what_became_of_a_checkpoint
        the_lease_row_is_locked_first
        a_lost_answer_to_commit_is_found_out
        a_lost_connection_is_made_anew
        a_dropped_call_does_no_harm
        a_closed_store_says_so
    }
    recovery {
        a_fresh_shard_starts_at_zero
        the_next_owner_goes_on
        the_log_is_read_from_any_position
        a_chunk_knows_its_times
        unreadable_rows_are_corrupt
        receipts_are_found_by_position
        receipts_are_read_from_the_newest_down
        parked_rows_come_in_pages
    }
    parked {
        rows_are_parked_with_their_message
        parked_rows_change_and_go
        a_payload_above_the_limit_is_kept_inside_the_server
        many_parked_rows
        nothing_is_parked_without_the_lease
    }
    acts {
        an_act_is_open_in_its_shards
        a_replay_is_its_commands_own
        many_order_at_once
        progress_is_part_of_a_checkpoint
        pauses_begin_and_end
        an_edit_keeps_the_original
        what_was_changed_is_found_by_position
        parked_rows_are_listed_and_counted
        a_scheduled_row_is_cancelled
    }
    scheduled {
        the_soonest_are_found
        a_row_is_handed_out_once_it_is_due
        a_row_that_is_held_is_passed_over
        owners_that_claim_at_once_pass_over_nothing
        a_session_may_have_any_time_zone
    }
    lease {
        a_shard_has_one_owner
        an_expired_lease_is_stolen
        only_the_owner_renews
        only_the_owner_releases
        a_round_has_several_parts
        instances_come_and_go
        instances_tell_their_troubles
        destinations_remember
        turns_are_one_process
        many_ask_at_once
    }
    maintain {
        what_is_settled_goes
        what_is_young_stays
        nothing_unsettled_goes
        nothing_goes_without_a_lane
        one_prunes_at_a_time
        what_is_prunable_is_shown_before
        only_what_was_exported_goes
        steps_are_bounded
        merging_loses_nothing
        merging_goes_in_steps
        open_hours_are_not_merged
    }
    status_find {
        status_of_nothing
        status_of_a_shard_at_work
        status_of_lagging_lanes
        status_of_an_expired_lease
        ids_are_found
        rows_are_enqueued
        enqueueing_is_all_or_nothing
    }
    transaction {
        a_committed_row_is_found
        a_tombstone_keeps_the_business_out
        an_open_transaction_is_not_judged
        many_judges_agree
        no_answer_is_no_finding
        transaction_ids_compare_by_bytes
        what_was_not_ended_goes_into_the_outbox
        what_was_ended_is_not_sent
        a_row_that_cannot_go_does_not_keep_others
        the_payload_takes_the_outbox_type
        relays_fall_back_side_by_side
        old_transactions_go
        transactions_are_found
        an_outbox_has_a_name
    }
    inbox {
        init_makes_the_tables
        a_message_is_stored_once
        the_columns_are_filled
        ids_compare_by_bytes
        a_refused_message_holds_back_its_key
        a_large_batch
        lanes_deliver_at_once
        an_earlier_table_gets_numbers
        what_was_done_long_ago_goes
    }
    inbox_places {
        a_step_is_taken_once
        rows_are_numbered_in_the_order_of_the_queue
        readers_of_one_queue_store_it_once
        a_refused_step_changes_nothing
        what_is_dead_is_counted
        without_its_tables_it_says_so
    }
}
