//! The handover from the parent to init, which is already at work: word that the ids are mapped, the control files of the control
//! group, the trees whose owners only root can map, and the sockets at the host's end of a veth pair. For the pair, init first hands
//! over its network namespace.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use sys::cgroup::Group;
use sys::descriptor;

use super::block::Block;

/// To init: the ids are mapped.
const MAPPED: &[u8] = b"m";
/// To the parent, with one descriptor: the network namespace that init made.
const NETWORK: &[u8] = b"n";
/// To init, with descriptors: the control files by which it moves itself into its control group.
const CONTROL_FILES: &[u8] = b"d";
/// To init, with one descriptor, the workspace: this octet, then the names that the parent holds in it, a line each.
const HELD: u8 = b'h';
/// To init, with one descriptor: one tree whose owners only root can map.
const TREE: &[u8] = b"t";
/// To init, after [`END`]: this octet, then the certificate of the run's authority.
const AUTHORITY: u8 = b'a';
/// To init, with three sockets: this octet, then the host's address on a link.
const LINK: u8 = b'l';
/// To init: the parent sends no more of [`CONTROL_FILES`], [`HELD`], [`TREE`] and [`LINK`].
const END: &[u8] = b".";

/// The largest message.
const LARGEST: usize = 8 * 1024;

/// The parent's side: reports that the ids are mapped.
pub(super) fn maps_written(hand: &OwnedFd) -> io::Result<()> {
    descriptor::send(hand, MAPPED, &[])
}

/// Init's side: hands over the network namespace that it has made.
pub(super) fn offer_network(hand: &OwnedFd, network: BorrowedFd<'_>) -> io::Result<()> {
    descriptor::send(hand, NETWORK, &[network])
}

/// The parent's side: waits for init's network namespace.
pub(super) fn take_network(hand: &OwnedFd) -> io::Result<OwnedFd> {
    let mut buffer = [0; 1];
    match descriptor::receive(hand, &mut buffer)? {
        (NETWORK, mut networks) => networks.pop().ok_or(io::ErrorKind::InvalidData.into()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The host's end of a veth pair: its address block, and the bound sockets in the order of their handover.
pub(super) struct Laid {
    pub(super) block: Block,
    pub(super) sockets: [OwnedFd; 3],
}

/// The parent's side: hands over everything except the authority.
pub(super) fn give(
    hand: &OwnedFd,
    group: Option<&Group>,
    held: Option<(BorrowedFd<'_>, &[PathBuf])>,
    trees: &[OwnedFd],
    laid: Option<&Laid>,
) -> io::Result<()> {
    let control_files = group.map(Group::control_files).unwrap_or_default();
    if !control_files.is_empty() {
        descriptor::send(hand, CONTROL_FILES, &control_files)?;
    }
    if let Some((workspace, names)) = held {
        let mut message = vec![HELD];
        for name in names {
            message.extend([name.as_os_str().as_bytes(), b"\n"].concat());
        }
        descriptor::send(hand, &message, &[workspace])?;
    }
    for tree in trees {
        descriptor::send(hand, TREE, &[tree.as_fd()])?;
    }
    if let Some(Laid { block, sockets }) = laid {
        let message = [&[LINK][..], &block.host().octets()].concat();
        descriptor::send(hand, &message, &sockets.each_ref().map(AsFd::as_fd))?;
    }
    descriptor::send(hand, END, &[])
}

/// The parent's side: hands over the certificate of the run's authority, which the sidecar makes while init is at work.
pub(super) fn give_authority(hand: &OwnedFd, authority: &[u8]) -> io::Result<()> {
    descriptor::send(hand, &[&[AUTHORITY][..], authority].concat(), &[])
}

/// Init's side: waits for that certificate.
pub(super) fn await_authority(hand: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut buffer = [0; LARGEST];
    match descriptor::receive(hand, &mut buffer)?.0 {
        [AUTHORITY, certificate @ ..] => Ok(certificate.to_vec()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Init's side: waits until the ids are mapped.
pub(super) fn await_maps(hand: &OwnedFd) -> io::Result<()> {
    match descriptor::receive(hand, &mut [0; 1])?.0 {
        MAPPED => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Everything that the parent hands over, except the authority.
#[derive(Default)]
pub(super) struct Handed {
    /// The group's control files; empty if init was born in the group, or there is none.
    pub(super) control_files: Vec<OwnedFd>,
    /// The workspace in which the parent holds names, and these.
    pub(super) held: Option<(OwnedFd, Vec<PathBuf>)>,
    /// The trees, in the order of the steps that show them.
    pub(super) trees: Vec<OwnedFd>,
    /// The host's end of the veth pair, if there is one.
    pub(super) laid: Option<Laid>,
}

/// Init's side: waits for everything except the authority.
pub(super) fn take(hand: &OwnedFd) -> io::Result<Handed> {
    let mut handed = Handed::default();
    loop {
        let mut buffer = [0; LARGEST];
        let (message, descriptors) = descriptor::receive(hand, &mut buffer)?;
        match message {
            CONTROL_FILES => handed.control_files = descriptors,
            [HELD, names @ ..] => handed.held = descriptors.into_iter().next().zip(Some(lines(names))),
            TREE => handed.trees.extend(descriptors),
            [LINK, host @ ..] => handed.laid = Some(laid(host, descriptors)?),
            END => return Ok(handed),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn lines(names: &[u8]) -> Vec<PathBuf> {
    let lines = names.split(|octet| *octet == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| OsStr::from_bytes(line).into()).collect()
}

fn laid(host: &[u8], sockets: Vec<OwnedFd>) -> io::Result<Laid> {
    let host = <[u8; 4]>::try_from(host).map_err(|_| io::ErrorKind::InvalidData)?;
    let sockets = sockets.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Laid { block: Block::holding(host.into()), sockets })
}
