//! What the parent hands to init while init is already at work: word that the ids are mapped, the doors of the control
//! group, and the trees whose owners only root can map.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use sys::cgroup::Group;
use sys::descriptor;

/// The messages: the ids are mapped; doors of the group; one tree; the certificate of the run's authority, which follows its
/// letter; nothing more comes.
const MAPPED: &[u8] = b"m";
const DOORS: &[u8] = b"d";
const TREE: &[u8] = b"t";
const AUTHORITY: u8 = b'a';
const END: &[u8] = b".";

/// The largest message.
const LARGEST: usize = 8 * 1024;

/// The parent's side: the ids of the sandbox are mapped.
pub(super) fn maps_written(hand: &OwnedFd) -> io::Result<()> {
    descriptor::send(hand, MAPPED, &[])
}

/// The parent's side: everything else.
pub(super) fn give(
    hand: &OwnedFd,
    group: Option<&Group>,
    trees: &[OwnedFd],
    authority: Option<&[u8]>,
) -> io::Result<()> {
    let doors = group.map(Group::doors).unwrap_or_default();
    if !doors.is_empty() {
        descriptor::send(hand, DOORS, &doors)?;
    }
    for tree in trees {
        descriptor::send(hand, TREE, &[tree.as_fd()])?;
    }
    if let Some(authority) = authority {
        descriptor::send(hand, &[&[AUTHORITY][..], authority].concat(), &[])?;
    }
    descriptor::send(hand, END, &[])
}

/// Init's side: waits until the ids are mapped.
pub(super) fn await_maps(hand: &OwnedFd) -> io::Result<()> {
    match descriptor::receive(hand, &mut [0; 1])?.0 {
        MAPPED => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What init was handed.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// The group's doors; empty where init was born in it, or there is none.
    pub(super) doors: Vec<OwnedFd>,
    /// The trees, in the order of the steps that show them.
    pub(super) trees: Vec<OwnedFd>,
    /// The certificate of the run's authority.
    pub(super) authority: Option<Vec<u8>>,
}

/// Init's side: waits for everything else.
pub(super) fn take(hand: &OwnedFd) -> io::Result<Handed> {
    let mut handed = Handed::default();
    loop {
        let mut buffer = [0; LARGEST];
        let (message, descriptors) = descriptor::receive(hand, &mut buffer)?;
        match message {
            DOORS => handed.doors = descriptors,
            TREE => handed.trees.extend(descriptors),
            [AUTHORITY, certificate @ ..] => handed.authority = Some(certificate.to_vec()),
            END => return Ok(handed),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
