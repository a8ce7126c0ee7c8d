//! One suite on every backend: what `Stores` promises must hold for each, where the backend itself can do it.
#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod backends;
mod checks;
mod s3_checks;

/// A test for each check, on a backend of its own.
macro_rules! on {
    ($backend:ident: $($group:ident :: $check:ident),* $(,)?) => {
        mod $backend {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                crate::$group::$check(&crate::backends::Backend::$backend().await).await;
            })*
        }
    };
}

on!(files:
    checks::odd_keys_give_their_own_bytes,
    checks::very_long_keys,
    checks::ranges_are_exact,
    checks::a_replaced_object_is_another_version,
    checks::missing_is_told_from_empty_and_from_too_large,
    checks::the_probe_sees_a_missing_object,
);

on!(embedded:
    checks::odd_keys_give_their_own_bytes,
    checks::very_long_keys,
    checks::ranges_are_exact,
    checks::a_replaced_object_is_another_version,
    checks::missing_is_told_from_empty_and_from_too_large,
    checks::the_probe_sees_a_missing_object,
    s3_checks::keys_are_named_byte_for_byte,
    s3_checks::what_was_stored_with_a_checksum_is_checked,
    s3_checks::a_wrong_byte_is_never_served,
    s3_checks::compressed_objects_come_as_they_are_stored,
    s3_checks::objects_in_parts,
    s3_checks::wrong_keys_are_refused_loudly,
    s3_checks::rotated_keys_are_taken_from_the_folder,
    s3_checks::expired_tokens_are_waited_for,
    s3_checks::throttling_is_survived,
    s3_checks::missing_objects_are_remembered_for_a_while,
);

on!(versity:
    checks::odd_keys_give_their_own_bytes,
    checks::very_long_keys,
    checks::ranges_are_exact,
    checks::a_replaced_object_is_another_version,
    checks::missing_is_told_from_empty_and_from_too_large,
    checks::the_probe_sees_a_missing_object,
    s3_checks::keys_are_named_byte_for_byte,
    s3_checks::what_was_stored_with_a_checksum_is_checked,
    s3_checks::a_wrong_byte_is_never_served,
    s3_checks::compressed_objects_come_as_they_are_stored,
    s3_checks::objects_in_parts,
    s3_checks::wrong_keys_are_refused_loudly,
    s3_checks::rotated_keys_are_taken_from_the_folder,
    s3_checks::expired_tokens_are_waited_for,
    s3_checks::throttling_is_survived,
    s3_checks::missing_objects_are_remembered_for_a_while,
    // What ours does not do.
    s3_checks::the_server_itself_refuses_another_version,
    s3_checks::a_clock_that_is_wrong_is_waited_for,
    s3_checks::another_region_is_refused_with_the_remedy,
    s3_checks::a_missing_bucket_is_no_missing_object,
    s3_checks::not_allowed_is_told_from_missing,
);

on!(versity_by_host:
    checks::odd_keys_give_their_own_bytes,
    checks::very_long_keys,
    checks::ranges_are_exact,
    checks::a_replaced_object_is_another_version,
    checks::missing_is_told_from_empty_and_from_too_large,
    checks::the_probe_sees_a_missing_object,
    s3_checks::the_bucket_is_in_the_host_header,
    s3_checks::keys_are_named_byte_for_byte,
);
