//! A broker that runs as a user of its own, with few capabilities: what the
//! tests of other files say of root's holds for it, too.

use crate::process::as_user;
use crate::{fanout, hostile, sends, takeover};

#[test]
fn users_are_apart() {
    as_user(hostile::users_do_not_get_each_others_frames_nor_the_hosts);
    as_user(hostile::what_a_client_is_given_reaches_nothing_else);
}

/// The broker may not look for maps itself.
#[test]
fn memory_that_a_user_keeps_is_counted() {
    as_user(hostile::a_user_gets_no_more_memory_by_closing_and_keeping);
    as_user(hostile::memory_of_a_closed_port_is_waited_for);
}

/// The broker may not make network namespaces itself.
#[test]
fn users_send_by_it() {
    as_user(sends::a_user_sends_what_the_policy_allows_and_the_rest_is_counted);
    as_user(sends::without_a_grant_nothing_is_sent_and_a_filter_narrows_one);
    as_user(sends::a_path_goes_with_its_program_its_port_and_its_broker);
    as_user(sends::a_path_outlives_its_broker_and_does_what_the_next_one_says);
}

#[test]
fn ports_outlive_it() {
    as_user(takeover::brokers_that_are_killed_or_replaced_interrupt_nothing);
    as_user(takeover::kills_in_any_order_leave_nothing);
    as_user(fanout::groups_outlive_their_broker);
}
