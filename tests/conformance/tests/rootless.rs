//! Every promise without root: where the tests run as root, this runs the programs that prove them again as another user.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use lockgate_conformance::{Needs, ready};
use lockgate_needs::{REQUIRE, made_by_setup, program};

/// The account that `cargo xtask setup` makes, or one that every system has.
const ACCOUNTS: [&str; 2] = ["lockgate-test", "nobody"];

const KERNELS: &[&str] = &["promises", "container"];
const ENGINES: &[&str] = &["docker", "podman"];

/// Every test that is skipped without root: in which programs, for which reason (its beginning, where the rest is the machine's), and its
/// name. Whatever else is skipped proves nothing, and is a failure.
const SKIPPED: &[(&[&str], &str, &[&str])] = &[
    (
        KERNELS,
        "this test needs to be root",
        &[
            "descriptors::of_files_the_sidecar_can_append_to_its_audit_alone",
            "leftovers::a_file_system_that_was_shown_can_be_unmounted_afterwards",
            "mount_sources::what_is_mounted_below_a_read_only_place_is_not_written",
            "setuid::setuid_has_no_effect",
        ],
    ),
    // Only root makes links.
    (
        &["container"],
        "this test needs to be root",
        &[
            "links::a_backend_without_links_refuses_by_name",
            "links::a_host_that_routes_the_range_keeps_it",
            "links::fifty_at_once_have_addresses_of_their_own",
            "links::links_and_walls_go_with_their_runs",
            "links::nobody_else_reaches_a_link_or_what_is_behind_it",
            "links::the_host_is_out_of_reach_by_whatever_address",
            "links::the_wall_stands_when_the_host_flushes_its_rules",
        ],
    ),
    (KERNELS, "no control group is delegated to this user", LIMITS),
    (ENGINES, "no control group is delegated to this user", LIMITS),
    (
        ENGINES,
        "no control group is delegated to this user",
        &[
            "memory_limit::an_init_that_was_ended_for_want_of_memory_is_told_as_that",
            "sidecar_limits::the_engine_holds_them_to_it",
        ],
    ),
    (
        ENGINES,
        "this test needs to be root",
        &[
            "engine_socket::no_folder_in_which_it_is_mounted_is_shown",
            "image_user::a_command_is_whom_its_workspace_belongs_to_and_else_whom_its_image_names",
            "init::no_thread_of_init_at_an_engine_takes_a_signal",
            "mount_sources::what_is_mounted_below_a_read_only_place_is_not_written",
            "overlay_workspace::at_an_engine_who_is_not_root_decides_without_it",
            "setuid::setuid_has_no_effect",
        ],
    ),
    (
        &["docker"],
        "this test needs to be root",
        &["behind::in_a_process_namespace_of_somebody_elses_nothing_is_left_behind"],
    ),
    // It is made again in each test, and in it nobody has the subordinate ids that an engine without root needs.
    (
        ENGINES,
        "an engine without root is in no small internet",
        &[
            "allowed_host::an_allowed_host_works_by_the_proxy_of_process",
            "allowed_host::an_allowed_host_works_on_every_plane",
            "audit::one_record_a_request",
            "companions::it_goes_through_the_runs_proxy_or_nowhere",
            "companions::it_has_the_commands_rules_or_its_own",
            "datagrams::datagrams_lead_nowhere",
            "datagrams::nothing_goes_past_the_routes",
            "default_deny::no_policy_allows_nothing",
            "denied_host::the_proxy_refuses_and_says_why",
            "denied_host::without_the_proxy_it_fails_fast",
            "dns::nobody_around_is_asked",
            "dns::only_allowed_names_resolve",
            "dns::other_ways_to_ask_are_closed",
            "dns::who_asks_for_the_name_of_an_address_is_denied_nothing",
            "organisations::a_key_that_changed_counts_from_the_next_request_on",
            "organisations::a_run_uses_the_keys_of_its_organisation_and_no_others",
            "ports::only_the_named_ports_are_open",
            "private_addresses::names_that_lead_to_private_addresses_are_refused",
            "private_addresses::private_addresses_are_out_of_reach",
            "raw_addresses::an_allowed_name_does_not_cover_another_inside_the_request",
            "raw_addresses::raw_addresses_are_refused",
            "server_names::the_server_name_must_agree",
            "setup::one_reaches_what_the_command_may_reach_and_no_more",
            "unix_sockets::host_unix_sockets_are_out_of_reach",
        ],
    ),
    (&["podman"], "an engine without root refuses by name what this test is about", OF_ROOTS_ENGINE),
    (
        &["podman"],
        "an engine without root refuses by name what this test is about",
        &["pool::one_that_podman_has_lost_count_of_harms_nobody"],
    ),
    (
        &["docker"],
        "declared ports and the pool are not tried at Docker's engine without root",
        OF_ROOTS_ENGINE,
    ),
    (
        &["docker"],
        "declared ports and the pool are not tried at Docker's engine without root",
        &["inbound::an_engine_that_hides_who_connects_opens_ports_for_this_machine_alone"],
    ),
    (
        &["docker"],
        "at this engine the processes of all runs count as one's",
        &[
            "at_once::forty_runs_at_once_have_networks_of_their_own_and_leave_nothing",
            "leftovers::two_hundred_at_once_come_and_go",
        ],
    ),
];
const LIMITS: &[&str] = &[
    "memory_limit::a_memory_bomb_ends_inside_its_limit",
    "memory_limit::of_many_small_processes_those_of_the_command_are_ended",
    "process_limit::a_fork_bomb_ends_inside_its_limit",
    "processor_limit::processor_time_is_bounded",
];
const OF_ROOTS_ENGINE: &[&str] = &[
    "inbound::a_container_on_another_network_of_the_engines_is_not_this_machine",
    "inbound::a_port_in_use_is_an_error_before_anything_starts",
    "inbound::what_an_engine_publishes_is_reached_by_who_may",
    "pool::a_killed_run_leaves_none_that_was_taken",
    "pool::a_pool_of_none_is_neither_used_nor_filled",
    "pool::a_second_letter_ends_the_run",
    "pool::neither_end_of_a_run_waits_for_the_pool",
    "pool::of_all_who_ask_for_one_at_once_one_has_it",
    "pool::one_of_the_pool_lets_out_what_is_allowed_and_nothing_else",
    "pool::one_that_does_not_answer_is_done_without",
    "pool::one_that_waits_holds_no_secret",
    "pool::the_pool_is_drained_first_and_filled_up_behind_a_run",
    "pool::two_runs_never_share_one",
    "shared_networks::docker_and_podman_of_one_machine_have_a_network_each",
    "shared_networks::one_network_is_made_where_another_has_the_addresses",
];

#[test]
fn the_promises_of_linux_hold_without_root() {
    hold_without_root("promises");
}

#[test]
fn the_promises_of_container_hold_without_root() {
    hold_without_root("container");
}

/// Podman's service and its runs, by one account. Left out are what is refused there by name, limits that need a delegated control group,
/// and the small internet, in which nobody has subordinate ids.
#[test]
fn the_promises_of_podman_hold_without_root() {
    hold_without_root("podman");
}

/// Docker and its runs, by one account: the command is root of a namespace that maps it to the account. Left out are limits, the small
/// internet, declared ports, the pool, and many runs at once, whose processes all count as one run's.
#[test]
fn the_promises_of_docker_hold_without_root() {
    hold_without_root("docker");
}

fn hold_without_root(promises: &str) {
    if !ready(&[Needs::Linux, Needs::Root]) {
        return;
    }
    let account = ACCOUNTS.iter().find_map(|name| known(name)).expect("an unprivileged account");
    let folder = tempfile::Builder::new().prefix("lockgate-rootless-").tempdir_in("/var/tmp").unwrap();
    readable(folder.path());
    let place = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        fs::copy(from, &to).unwrap();
        readable(&to);
        to
    };
    let own = std::env::current_exe().unwrap();
    let beside = built_beside(&own, promises);
    let tests = place(&beside, beside.file_name().unwrap().to_str().unwrap());
    let programs = ["lockgate", "probe", "world"].map(|name| place(&program(name).unwrap(), name));
    // Found from where the tests are, as always.
    if let Ok(debian) = made_by_setup("images/debian.tar") {
        fs::create_dir(folder.path().join("images")).unwrap();
        readable(&folder.path().join("images"));
        place(&debian, "images/debian.tar");
    }
    let (user, group) = account.split_once(':').expect("two numbers");
    let engine = match promises {
        "docker" => Some("--docker-of"),
        "podman" => Some("--podman-of"),
        _ => None,
    };
    let at_engine = engine.is_some();
    let start = |share: &[String]| {
        let mut command = Command::new(if at_engine { program("engine").unwrap() } else { "setpriv".into() });
        if let Some(of) = engine {
            // All tests of a share have one engine: what they count there must be theirs.
            let archive = folder.path().join("images/debian.tar");
            command.args([of, &account, "--archive"]).arg(archive);
            command.args(["--as", "LOCKGATE_TEST_ENGINE", "--", "setpriv"]);
        }
        command.args(["--reuid", user, "--regid", group, "--clear-groups", "--"]);
        command
            .arg(&tests)
            .args(["--test-threads", if at_engine { "1" } else { "2" }, "--exact", "--show-output"])
            .args(share);
        command.current_dir("/var/tmp").stdin(Stdio::null());
        command.env("HOME", "/nonexistent").env_remove("XDG_RUNTIME_DIR").env_remove(REQUIRE);
        for (variable, path) in
            ["LOCKGATE_BIN", "LOCKGATE_PROBE_BIN", "LOCKGATE_WORLD_BIN"].iter().zip(&programs)
        {
            command.env(variable, path);
        }
        command.output().unwrap()
    };
    let all = names_of(&tests);
    // One test at a time at an engine, and two engines; but one for Docker, where all processes of an account count as one run's.
    let many = if promises == "podman" { 2 } else { 1 };
    let share = |first| all.iter().skip(first).step_by(many).cloned().collect();
    let shares: Vec<Vec<String>> = (0..many).map(share).collect();
    let ended: Vec<Output> = std::thread::scope(|scope| {
        let all: Vec<_> = shares.iter().map(|share| scope.spawn(|| start(share))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let told: String = ended.iter().map(|it| String::from_utf8_lossy(&it.stdout)).collect();
    let errors: String = ended.iter().map(|it| String::from_utf8_lossy(&it.stderr)).collect();
    assert!(ended.iter().all(|it| it.status.success()), "{}\n{errors}", without_passed(&told));
    let passed = told.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed == all.len(), "only {passed} tests of {} were run: {told}", all.len());
    let (skipped, expected) = (skipped(&told), expected(promises));
    let unexpected: Vec<_> = skipped.difference(&expected).collect();
    let proven: Vec<_> = expected.difference(&skipped).collect();
    assert!(unexpected.is_empty(), "skipped, and should not be: {unexpected:#?}");
    assert!(proven.is_empty(), "not skipped, and off the list from now on: {proven:#?}");
}

/// Returns the tests that were skipped, each with the beginning of its reason.
fn skipped(told: &str) -> BTreeSet<(String, String)> {
    let mut name = "";
    let mut skipped = BTreeSet::new();
    for line in told.lines() {
        if let Some(of) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            name = of;
        }
        if let Some(reason) = line.strip_prefix("skipped: ") {
            let beginning = reason.split(": ").next().unwrap_or_default();
            skipped.insert((name.trim_start_matches("all::").to_owned(), beginning.to_owned()));
        }
    }
    skipped
}

/// Returns the tests of a program that an account without root skips.
fn expected(promises: &str) -> BTreeSet<(String, String)> {
    let of_program = SKIPPED.iter().filter(|(programs, ..)| programs.contains(&promises));
    of_program
        .flat_map(|(_, reason, tests)| tests.iter().map(|test| ((*test).to_owned(), (*reason).to_owned())))
        .collect()
}

/// Removes what passed tests printed, and their lines: a report that is cut short must not end before the failed ones.
fn without_passed(told: &str) -> String {
    let mut of_passed = false;
    let kept = told.lines().filter(|line| {
        of_passed =
            *line == "successes:" || (of_passed && *line != "failures:" && !line.starts_with("test result"));
        !(of_passed || line.starts_with("test ") && line.ends_with("... ok"))
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Returns the names of a program's tests, without those of tables.
fn names_of(tests: &Path) -> Vec<String> {
    let listed =
        Command::new(tests).args(["--list", "--format", "terse", "--skip", "table::"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Returns the latest test program of that name in the same directory.
fn built_beside(own: &Path, name: &str) -> PathBuf {
    let entries = fs::read_dir(own.parent().unwrap()).unwrap().flatten().map(|entry| entry.path());
    let named = entries.filter(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')) && path.extension().is_none()
    });
    named
        .max_by_key(|path| fs::metadata(path).and_then(|m| m.modified()).ok())
        .expect("it was built with this one")
}

fn readable(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the user and group of an account, if it exists.
fn known(account: &str) -> Option<String> {
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = accounts.lines().find(|line| line.split(':').next() == Some(account))?;
    let fields: Vec<_> = line.split(':').collect();
    Some(format!("{}:{}", fields.get(2)?, fields.get(3)?))
}
