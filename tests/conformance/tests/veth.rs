//! The promises about the network again, for `linux` with the wiring `veth`: the same modules in a program named after it.

mod allowed_host;
mod audit;
mod datagrams;
mod default_deny;
mod denied_host;
mod dns;
mod leftovers;
mod links;
mod netlink_writes;
mod ports;
mod private_addresses;
mod raw_addresses;
mod server_names;
mod siblings;
mod sidecar_death;
mod unix_sockets;
