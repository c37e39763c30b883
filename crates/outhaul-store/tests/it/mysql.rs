//! MariaDB and MySQL: the conformance suite, and what only they have. Each case runs on both.

mod adopted;
mod hostile;
mod rights;
mod sessions;
mod tls;
mod waits;

/// One test for each case, for one flavour of server.
macro_rules! own_cases {
    ($flavour:expr) => {
        own_cases! { $flavour;
            adopted { a_table_made_for_debezium_is_adopted a_row_of_an_adopted_table_is_not_waited_for }
            hostile {
                a_server_with_other_ideas packets_may_be_small a_payload_larger_than_a_packet_is_parked
                weak_settings_are_named a_replica_is_refused a_restarted_server_is_connected_to_anew
            }
            rights { the_printed_grants_are_enough what_a_user_may_not_do_is_named an_application_only_inserts a_user_of_transactions_judges_and_ends }
            sessions {
                a_killed_connection_is_made_anew a_connection_killed_in_its_transaction_wrote_nothing
                a_late_commit_is_waited_out a_server_that_does_not_answer_is_given_up an_idle_poll_is_one_statement
                a_session_leaves_nothing_behind
            }
            tls { a_password_is_checked_over_plain_tcp a_custom_authority_is_trusted }
            waits {
                open_neighbours_of_a_run_are_not_waited_for open_neighbours_of_single_rows_are_not_waited_for
                applications_do_not_wait_for_a_checkpoint owners_do_not_wait_for_each_other
                pruning_does_not_wait_for_a_checkpoint a_lock_is_waited_for_within_its_limit
                rows_read_but_not_moved_stay numbers_given_again_delete_nothing
            }
        }
    };
    ($flavour:expr; $($theme:ident { $($case:ident)* })*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                outhaul_testkit::store_suite::within_limit(crate::mysql::$theme::$case($flavour)).await;
            }
        )*)*
    };
}

mod mariadb {
    use outhaul_testkit::servers::Flavour;

    own_cases!(Flavour::MariaDb);

    mod suite {
        use outhaul_testkit::servers::Flavour;

        outhaul_testkit::store_suite!(Flavour::MariaDb);
    }
}

mod oracle {
    use outhaul_testkit::servers::Flavour;

    own_cases!(Flavour::MySql);

    mod suite {
        use outhaul_testkit::servers::Flavour;

        outhaul_testkit::store_suite!(Flavour::MySql);
    }
}
