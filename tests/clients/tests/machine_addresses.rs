//! The addresses of the machine itself are no way out, whatever the kernel would take for a connection's source. S0.39, S1.38.

use lockgate_clients::{Need, Site};

const NEEDS: &[Need] = &[Need::Program("ip"), Need::Program("unshare"), Need::Program("python3")];

/// In a network of its own with two addresses of one network and two that are each a network's only one. `check` prints
/// `ADDRESS=VERDICT` for each of them, and for one that is a neighbour's.
const NETWORK: &str = r#"
ip link set lo up
for it in 93.184.216.10/24 93.184.216.11/24 93.184.217.10/32; do ip addr add "$it" dev lo; done
ip addr add 2606:2800:220:9::1/64 dev lo nodad # without which the kernel takes some milliseconds to call it its own
ip route add local 93.184.218.0/24 dev lo src 93.184.216.10
check() {
    for it in 93.184.216.10 93.184.216.11 93.184.217.10 93.184.218.9 '[2606:2800:220:9::1]' 93.184.219.1; do
        said=$("$PRODUCT" policy check --policy "$POLICY" "http://$it:8080/" 2>&1) && said=allow
        case $said in allow) ;; *"this machine"*) said=own ;; esac
        echo "$1$it=$said"
        said=$("$PRODUCT" policy explain --policy "$POLICY" "http://$it:8080/" 2>&1) && said=allow
        case $said in allow) ;; *"this machine"*) said=own ;; esac
        echo "$1explained-$it=$said"
    done
}
"#;

#[test]
fn every_address_of_the_machine_is_told_from_others() {
    for site in Site::for_everyone(NEEDS) {
        let policy = site.file("open.toml", "egress.default = \"open-internet\"\n");
        let network = site.file(
            "network.sh",
            format!("{NETWORK}\ncheck plain-\nsysctl -qw net.ipv4.ip_nonlocal_bind=1\ncheck bound-\n"),
        );
        let shell = site.shell().with("POLICY", &policy);
        let ended = shell.run(&format!("unshare -rn /bin/sh -eu {}", network.display()));
        let own = ["93.184.216.10", "93.184.216.11", "93.184.217.10", "[2606:2800:220:9::1]"];
        for way in ["plain-", "bound-"] {
            for address in own {
                assert_eq!(ended.said(&format!("{way}{address}")), "own", "{ended}");
                assert_eq!(ended.said(&format!("{way}explained-{address}")), "own", "{ended}");
            }
            assert_eq!(ended.said(&format!("{way}93.184.219.1")), "allow", "{ended}");
            assert_eq!(ended.said(&format!("{way}explained-93.184.219.1")), "allow", "{ended}");
        }
        // A whole network that is local has no interface that lists it.
        assert_eq!(ended.said("plain-93.184.218.9"), "own", "{ended}");
    }
}

const INBOUND: &str = r#"
ip link set lo up
ip addr add 10.9.9.1/24 dev lo
sysctl -qw net.ipv6.bindv6only=1
"$PRODUCT" run --policy "$POLICY" --limits best-effort -- python3 -c 'import socket
served = socket.create_server(("0.0.0.0", 8000))
served.accept()[0].sendall(b"hi")' &
await 'python3 -c "import socket
link = socket.create_connection((\"10.9.9.1\", 18000), 5)
print(\"heard=\" + link.recv(2).decode())" 2>/dev/null' 20
wait $!
"#;

#[test]
fn a_declared_port_answers_in_both_families() {
    let Some(site) = Site::for_unprivileged_test(NEEDS) else { return };
    let policy = site.file(
        "inbound.toml",
        "[[inbound]]\ncontainer_port = 8000\nhost_port = 18000\nallowed_sources = [\"10.9.9.0/24\"]\n",
    );
    let script = site.file("inbound.sh", format!("{}{INBOUND}", lockgate_clients::AWAIT));
    let shell = site.shell().with("POLICY", &policy);
    let ended = shell.run(&format!("unshare -rn /bin/sh -eu {}", script.display()));
    assert_eq!(ended.said("heard"), "hi", "{ended}");
}
