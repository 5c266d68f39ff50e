//! The list of promises: each with its sentence, the backends that make it, its test, and the requirements it answers.
//! A test checks that every promise has a test file.

use crate::bench::Backend;

/// One sentence that holds, or the product is broken.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// The name: the test file without `.rs`.
    pub id: &'static str,
    /// The sentence that holds.
    pub sentence: &'static str,
    /// The backends that make the promise.
    pub backends: &'static [Backend],
    /// The numbers of the requirements and threats it answers.
    pub answers: &'static str,
}

const ISOLATED: &[Backend] = &[Backend::Linux, Backend::Container, Backend::Docker, Backend::Podman];
/// The isolated backends and the other wiring, for promises about the network.
const WIRED: &[Backend] =
    &[Backend::Linux, Backend::Veth, Backend::Container, Backend::Docker, Backend::Podman];
/// Backends with a link of their own, which root must start.
const LINKED: &[Backend] = &[Backend::Veth, Backend::Container];
/// Backends whose root our own init makes.
const OF_KERNEL: &[Backend] = &[Backend::Linux, Backend::Container];
/// Backends that need an image.
const OF_IMAGES: &[Backend] = &[Backend::Container, Backend::Docker, Backend::Podman];
const OF_ENGINE: &[Backend] = &[Backend::Docker, Backend::Podman];
const OF_DOCKER: &[Backend] = &[Backend::Docker];
const ALL: &[Backend] =
    &[Backend::Linux, Backend::Container, Backend::Docker, Backend::Podman, Backend::Process];
const EVERY: &[Backend] =
    &[Backend::Linux, Backend::Veth, Backend::Container, Backend::Docker, Backend::Podman, Backend::Process];

const fn promise(
    id: &'static str,
    backends: &'static [Backend],
    sentence: &'static str,
    answers: &'static str,
) -> Promise {
    Promise { id, sentence, backends, answers }
}

/// Every promise, by theme: files, processes, privileges, network, secrets, limits, lifecycle.
#[rustfmt::skip]
pub const PROMISES: &[Promise] = &[
    promise("host_files", ISOLATED, "Files of the host that were not declared cannot be read, by whatever name.", "S2.6 S3.7"),
    promise("writes", ISOLATED, "Nothing outside the workspace can be changed; system directories are read-only, an image's a private copy.", "S2.6 S3.7"),
    promise("private_directories", ISOLATED, "`/tmp` and the home directory are the run's own, and gone with it.", "S3.7"),
    promise("mount_sources", ISOLATED, "Only what is declared enters, as declared; a link or `..` as a source is refused.", "S3.7 S3.12"),
    promise("builtin_tools", ISOLATED, "A tool's configuration enters as a copy without its credentials, its cache is not written, and no link leads to either.", "S3.11 S3.12 C13"),
    promise("protected_files", ISOLATED, "What the host later executes or trusts cannot be written where it exists; of names that do not, some are held, and others are told once they were made.", "DESIGN §5"),
    promise("overlay_workspace", ISOLATED, "What a run writes in a workspace that is kept apart reaches it by `lockgate apply` alone.", "DESIGN §5"),
    promise("devices", ISOLATED, "No device of the machine's can be reached or made.", "S2.6"),
    promise("setuid", ISOLATED, "A setuid program gives nobody anything.", "S2.7"),
    promise("kernel_files", ISOLATED, "No file of the kernel's opens for writing, not even for a run that root started.", "DESIGN §9"),
    promise("cgroups", ISOLATED, "Control groups cannot be changed from inside; no release agent can be set.", "S2.9"),
    promise("mounts", OF_KERNEL, "Every mount is `nosuid`, the system's are read-only, none leads to the old root.", "S2.6"),

    promise("host_processes", ISOLATED, "Processes of the host are neither seen, signalled nor looked into.", "S2.4"),
    promise("init", ISOLATED, "The sandbox's own init cannot be read, traced, stopped or killed from inside.", "S3.14"),
    promise("siblings", WIRED, "Two runs cannot see or reach each other.", "S0.36 S3.9 C17"),

    promise("privileges", ISOLATED, "No capabilities, no way to new ones, an allowlist of system calls, nobody's root.", "S2.7 S2.8 S3.13"),
    promise("user_namespaces", ISOLATED, "No nested user namespace.", "S2.7"),
    promise("syscalls", ISOLATED, "Every system call of the escape table is refused, each by name; an argument that would make others wait, or leave a device, is refused or has no effect.", "S2.8"),
    promise("descriptors", ALL, "The command has stdin, stdout and stderr, and no other descriptor; from Linux 6.16 on it can send the sidecar none. The sidecar has none of the caller's streams, and may write to no file but its audit, at whose end alone.", "DESIGN §4"),
    promise("terminal", ISOLATED, "Keystrokes cannot be pushed into the caller's terminal; an interactive run has one of its own.", "DESIGN §4"),
    promise("streams", OF_KERNEL, "Of the caller's streams nothing enters but their one direction: a pipe is not opened the other way, a file not changed, and no more is taken than was read.", "DESIGN §4"),
    promise("environment", ALL, "Nothing of the caller's environment enters but what is named.", "S0.16 S0.22 S1.12 S1.13 C14"),

    promise("allowed_host", EVERY, "An allowed host works unchanged: on every plane, or by the proxy of `process`.", "S0.28 S0.30 S4.24 S4.67 E08"),
    promise("denied_host", EVERY, "A host that is not allowed gets 403 naming its guard at the proxy, and a fast refusal elsewhere.", "S0.37 S0.38 S4.66 E02 E20"),
    promise("default_deny", WIRED, "Without a policy nothing gets out, not even a question for a name.", "S4.2 E01 E02"),
    promise("dns", WIRED, "Only allowed names resolve, and no question of the agent's leaves the machine.", "S2.14 S4.23 E04"),
    promise("raw_addresses", WIRED, "An address is no way around a name, in either family, on any plane.", "S0.37 C02 C03 E07 E10"),
    promise("server_names", WIRED, "A TLS server name must be the name that was resolved; none, another or a broken one is refused.", "S4.67 C03 E03 E13"),
    promise("private_addresses", EVERY, "Loopback, LAN, metadata, and names that lead there, cannot be reached, in open mode either.", "S0.34 S0.39 S1.38 S3.5 S4.28 S4.29 S4.60 E12 E14 E17"),
    promise("ports", WIRED, "An allowed host is allowed on its ports only, for any TCP protocol on them.", "E06 E18"),
    promise("companions", ISOLATED, "A companion is reached by its name and declared ports alone, has its own rules and no credential, is healthy before the command and gone with it.", "S3.6 S3.9 S3.17"),
    promise("backend_name", ALL, "Where no flag names a backend, `RUN_ADAPTER` or `LOCKGATE_SANDBOX` does; a name that is none is refused, as is one that cannot be made, and no other takes its place.", "S0.10 S1.3 S4.15"),
    promise("image_name", OF_IMAGES, "Where a backend that needs an image was asked for and nothing else names one, `PI_IMAGE` does.", "S1.6 S1.44"),
    promise("image_links", OF_ENGINE, "Links and volumes of an image put nothing in the place of what is Lockgate's.", "S3.14"),
    promise("image_user", OF_ENGINE, "A companion at an engine is whom its image names, by number or by name, and never root.", "S3.13"),
    promise("inbound", ISOLATED, "A port inside is reached from outside only where it is declared, by the sources that are.", "S3.7 S3.9"),
    promise("run_network", OF_ENGINE, "At an engine, the network of a run is internal: the command and its sidecar stand on it, no route leads off it, and its one resolver is the sidecar.", "S0.8 S0.12 S0.14 S0.19 S0.21 S1.4 S1.5 S1.7 S1.14"),
    promise("shared_networks", OF_ENGINE, "The networks that all runs at an engine share are made once, whoever begins at once and whatever has their addresses, another engine of the machine included.", "S0.18 S0.43"),
    promise("datagrams", WIRED, "No UDP, ICMP, raw, packet, vsock, SCTP or other socket leads out.", "S0.37 E05 E20"),
    promise("netlink_writes", WIRED, "The sandbox's network cannot be changed from inside.", "E05 E11"),
    promise("links", LINKED, "With `wiring = \"veth\"`, a sandbox's link leads to its sidecar and nowhere else, nothing leads to it, and it goes with the run.", "S2.11 S2.12 S2.13 S2.14"),
    promise("unix_sockets", WIRED, "Unix sockets of the host, by path and by abstract name, are unreachable.", "E05"),
    promise("engine_api", OF_ENGINE, "An engine is asked by its API alone: no program is executed for it.", "S3.15"),
    promise("engine_socket", OF_ENGINE, "A path that leads to the socket of the engine that makes a run is refused as a mount, a copy and a workspace.", "S3.10"),
    promise("sidecar_death", WIRED, "A run ends with its sidecar: closed, not open.", "E19"),
    promise("pool", OF_ENGINE, "A sidecar that waits for a run knows nothing, serves one run, and goes with it, however that ends.", "S0.40 S0.41 S0.42 S0.43 S1.7 S1.15 S1.16 S1.17"),
    promise("audit", EVERY, "Every request has exactly one audit record, and the chain verifies; the run's own says what it was allowed.", "S0.58 S4.69 E20"),
    promise("canary", ISOLATED, "A secret of the caller's is nowhere inside, nor in what the run leaves.", "S1.2 S3.7 C13 C14"),
    promise("exposed", ALL, "A credential is inside by value only in the variable that was named for it, and nothing that is kept or told has it.", "S0.7 S4.37 S4.45"),

    promise("memory_limit", ISOLATED, "A memory bomb ends inside its limit, named.", "S1.30 S2.9 L06"),
    promise("process_limit", ISOLATED, "A fork bomb ends inside its limit, named.", "S2.9 L06"),
    promise("disk_limit", ISOLATED, "A disk filler and an inode filler end inside the limit of the private directories.", "L06 L10"),
    promise("open_files", ISOLATED, "Descriptors and pseudo-terminals are bounded.", "L06 L10"),
    promise("sidecar_limits", OF_ENGINE, "A sidecar's container at an engine has limits of its own: memory, swap included, processors and processes.", "S1.32"),
    promise("processor_limit", ISOLATED, "A run uses no more processor than it was given.", "S1.31 S2.9"),
    promise("timeout", ALL, "At its time limit a run is ended, whatever it does (`process`: unless it stops the `lockgate` above it): exit 124.", "S0.24 S1.34 S1.36 S4.14"),

    promise("exit_codes", ALL, "The exit code tells the truth.", "DESIGN §4"),
    promise("setup", ALL, "Set-up commands run before the command, as the same user behind the same walls and rules; nothing of them is beside it, and only a required one that fails keeps it from running.", "S4.50 S4.54 S4.64 S4.72"),
    promise("descendants", ALL, "When the command or the command line ends, everything it started ends.", "L02"),
    promise("zombies", ISOLATED, "Orphans are reaped.", "S3.14 L03"),
    promise("pipes", ALL, "The caller never waits for a grandchild's pipe, and no output is lost.", "L05 L07"),
    promise("at_once", OF_ENGINE, "Runs that begin at once at one engine, forty in this test, each have a network of their own, and leave nothing.", "DESIGN §5"),
    promise("organisations", ALL, "A run uses the keys of the organisation it names, on every path, and no others; they are in nothing that it sees or leaves.", "S1.27 C13"),
    promise("labels", ALL, "A run is found again by its labels, and so is what an engine makes for it; the command is not told of them.", "S3.16 S4.9"),
    promise("behind", OF_DOCKER, "What an engine has of a run goes behind it, by somebody who holds nothing of the caller's, and is never forgotten.", "S3.16 S3.17 L01 L05"),
    promise("leftovers", WIRED, "Nothing is left after exit, timeout, cancel or `kill -9`.", "S3.17 S3.18 L01 L09 L11"),
];

/// Whether the tested backend makes a promise. Promises it does not make are not tried.
#[must_use]
pub fn promised(id: &str) -> bool {
    PROMISES.iter().any(|promise| promise.id == id && promise.backends.contains(&Backend::isolated()))
}
