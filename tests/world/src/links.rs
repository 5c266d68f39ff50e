//! The links: one veth pair between the host's network and the internet's, with addresses and routes on both. The internet answers for
//! every address, so that everything which leaves the host is recorded. It needs only `CAP_NET_ADMIN` over the two namespaces, and never
//! touches a network outside them.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::addresses::{BLACKHOLE, HOST4, HOST6, ROUTER4, ROUTER6, UNREACHABLE, bound};
use crate::error::Error;
use crate::namespaces::Network;
use crate::tools;

/// Makes both ends. It is called, and returns, in the host's network.
pub(crate) fn connect(host: &Network, internet: &Network) -> Result<(), Error> {
    prepare_families()?;
    let descriptor = internet.descriptor.as_raw_fd();
    let inherited = |flags| {
        fcntl_setfd(&internet.descriptor, flags)
            .map_err(|source| Error::Enter { namespace: internet.name, source: source.into() })
    };
    inherited(FdFlags::empty())?;
    // `ip` opens a namespace by path; its own descriptor table has ours at the same number.
    let pair = format!("link add eth0 type veth peer name wan netns /proc/self/fd/{descriptor}\n");
    let made = ip(host.name, &pair);
    inherited(FdFlags::CLOEXEC)?;
    made?;

    internet.enter()?;
    prepare_families()?;
    // Servers without privilege listen on 22, 53, 80 and 443 (ip-sysctl: ip_unprivileged_port_start).
    write_setting("net/ipv4/ip_unprivileged_port_start", "0")?;
    // Only a router reports that a host is unreachable.
    write_setting("net/ipv4/ip_forward", "1")?;
    ip(internet.name, &internet_side())?;

    host.enter()?;
    ip(host.name, &host_side())
}

fn internet_side() -> String {
    let mut batch = String::from("link set lo up\nlink set wan up\n");
    for address in bound() {
        batch += &match address {
            IpAddr::V4(address) => format!("addr add {address}/32 dev lo\n"),
            IpAddr::V6(address) => format!("addr add {address}/128 dev lo nodad\n"),
        };
    }
    batch += &format!("addr add {ROUTER4}/24 dev wan\naddr add {ROUTER6}/64 dev wan nodad\n");
    // A default route of type local (ip-route(8)) makes every address local, except the host's, whose route is more specific.
    batch += "route add local 0.0.0.0/0 dev lo table main\nroute add local ::/0 dev lo table main\n";
    batch += &format!("route add blackhole {BLACKHOLE}/32\nroute add unreachable {UNREACHABLE}/32\n");
    batch
}

fn host_side() -> String {
    format!(
        "link set lo up\nlink set eth0 up\naddr add {HOST4}/24 dev eth0\naddr add {HOST6}/64 dev eth0 nodad\n\
         route add default via {ROUTER4}\nroute add ::/0 via {ROUTER6}\n"
    )
}

/// Some machines disable IPv6 in new namespaces; duplicate address detection would delay the first packet by a second.
fn prepare_families() -> Result<(), Error> {
    for scope in ["all", "default", "lo"] {
        write_setting(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "0")?;
        write_setting(&format!("net/ipv6/conf/{scope}/accept_dad"), "0")?;
    }
    Ok(())
}

fn write_setting(name: &str, value: &str) -> Result<(), Error> {
    let path = PathBuf::from("/proc/sys").join(name);
    fs::write(&path, value).map_err(Error::file(path))
}

/// Runs `ip -batch` in the current network. A failing line stops it, and its message becomes ours.
fn ip(namespace: &'static str, batch: &str) -> Result<(), Error> {
    let program = tools::find("ip").ok_or(Error::Missing { program: "ip", package: "iproute2" })?;
    let failed = |message: String| Error::Links { namespace, message };
    let mut child = Command::new(program)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(batch.as_bytes()).map_err(|error| failed(error.to_string()))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}
