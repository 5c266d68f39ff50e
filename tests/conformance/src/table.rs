//! Prints the promises as a page of documentation.
//! The page is generated, never edited by hand; a test compares the two.

use std::fmt::Write;

use crate::bench::Backend;
use crate::promises::PROMISES;

/// Returns the whole of `docs/conformance.md`.
#[must_use]
pub fn table() -> String {
    let mut page = String::from(
        "# What each backend promises\n\n\
         Each row is a sentence that holds, proven by the file of that name in `tests/conformance/tests/`. What must fail has a\n\
         positive control: the same attempt succeeds where nothing holds it. Some controls show less:\n\n\
         - a vsock is only opened, for its other end is a hypervisor;\n\
         - a datagram, a multicast question and a request for the explicit proxy arrive, but nobody does what they ask;\n\
         - a system call or a socket that the machine's kernel lacks is refused inside, where the kernel would call it absent;\n\
         - what needs a capability of the machine's, and an ICMP echo, has its control where root runs the tests.\n\n\
         What a backend has no mark for it does not\n\
         promise; `process` isolates nothing and says so. What holds with `veth` is proven for `linux` and for `container`. Those of `linux`, `container`, Docker and Podman are proven once more without\n\
         root outside. Not repeated there:\n\n\
         - at both engines: what is refused by name ([docker.md](docker.md#which-engine)), limits that need a delegated control group, and what\n\
           is proven by requests to the small internet, in which nobody has subordinate ids;\n\
         - at Docker: declared ports, the pool, and many runs at once, whose processes count together.\n\n\
         This page is printed by `cargo run -p lockgate-conformance -- --write`; a test fails when it is out of date.\n\
         The last column numbers the requirements and threats that the tests were written from; that list is no part of this repository.\n\n\
         | promise | linux | with `veth` | container | docker | docker, Podman | process | proven by | answers |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for promise in PROMISES {
        let mark = |backend| if promise.backends.contains(&backend) { "✓" } else { "–" };
        let (linux, veth, container) = (mark(Backend::Linux), mark(Backend::Veth), mark(Backend::Container));
        let (docker, podman, process) =
            (mark(Backend::Docker), mark(Backend::Podman), mark(Backend::Process));
        let (sentence, id, answers) = (promise.sentence, promise.id, promise.answers);
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "| {sentence} | {linux} | {veth} | {container} | {docker} | {podman} | {process} | `{id}` | {answers} |"
        );
    }
    page
}
