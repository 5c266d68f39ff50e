//! Tries the addresses of a host side by side, each a little after the one before, so that a silent one costs no seconds (RFC 8305, "happy
//! eyeballs"). Which addresses may be tried was decided before; this dials nothing itself.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// How long all attempts to connect may take together.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// How long after an attempt the next one begins beside it (RFC 8305 §5).
const NEXT: Duration = Duration::from_millis(250);
/// How many are under way at once: each has a descriptor.
const AT_ONCE: usize = 4;
/// How long one may take while another has no room to begin.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How many addresses an error names.
const NAMED: usize = 4;

struct Attempt<A, F, P> {
    address: A,
    begun: Instant,
    connecting: Pin<Box<F>>,
    _place: Option<P>,
}

/// Returns the first connection that is made, and to which address. The others are given up. Each attempt beside another takes a place of
/// `beside`; without one it waits until another is given up, as where [`AT_ONCE`] are under way.
pub(super) async fn first_of<A, T, F, P>(
    addresses: &[A],
    connect: impl Fn(SocketAddr) -> F,
    beside: impl Fn() -> Option<P>,
) -> io::Result<(T, A)>
where
    A: Copy + Into<SocketAddr>,
    F: Future<Output = io::Result<T>>,
{
    let end = Instant::now() + CONNECT;
    let mut left = families_in_turn(addresses).into_iter();
    let (mut under_way, mut failed) = (Vec::<Attempt<A, F, P>>::new(), Vec::new());
    loop {
        let place = if under_way.is_empty() { Some(None) } else { beside().map(Some) };
        let mut is_full = place.is_none();
        if let Some(place) = place
            && let Some(address) = left.next()
        {
            let connecting = Box::pin(connect(address.into()));
            under_way.push(Attempt { address, begun: Instant::now(), connecting, _place: place });
            is_full = under_way.len() == AT_ONCE;
        }
        let Some(oldest) = under_way.first() else { break };
        let due = match left.len() {
            0 => end,
            _ if is_full => end.min(oldest.begun + ATTEMPT),
            _ => end.min(Instant::now() + NEXT),
        };
        match timeout_at(due, one_ended(&mut under_way)).await {
            Ok((address, Ok(made))) => return Ok((made, address)),
            Ok((address, Err(error))) => failed.push((address.into(), error)),
            Err(_) if due == end => break,
            Err(_) if is_full => drop(under_way.remove(0)),
            Err(_) => {}
        }
    }
    Err(unreached(addresses, &failed))
}

/// Waits until an attempt has ended, and takes it out.
async fn one_ended<A, T, F, P>(under_way: &mut Vec<Attempt<A, F, P>>) -> (A, io::Result<T>)
where
    A: Copy,
    F: Future<Output = io::Result<T>>,
{
    poll_fn(|context| {
        for index in 0..under_way.len() {
            if let Poll::Ready(end) = under_way[index].connecting.as_mut().poll(context) {
                return Poll::Ready((under_way.remove(index).address, end));
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns the addresses with their families in turn, the first one's first (RFC 8305 §4).
fn families_in_turn<A: Copy + Into<SocketAddr>>(addresses: &[A]) -> Vec<A> {
    let is_ipv6 = |address: &A| (*address).into().is_ipv6();
    let is_first_family = |address: &A| addresses.first().map(is_ipv6) == Some(is_ipv6(address));
    let (first, other): (Vec<A>, Vec<A>) = addresses.iter().copied().partition(is_first_family);
    let mut other = other.into_iter();
    let mut in_turn: Vec<A> = first.into_iter().flat_map(|one| [Some(one), other.next()]).flatten().collect();
    in_turn.extend(other);
    in_turn
}

/// Says what became of each address. The last one's end is the end of all.
fn unreached<A: Copy + Into<SocketAddr>>(addresses: &[A], failed: &[(SocketAddr, io::Error)]) -> io::Error {
    let end_of = |address| failed.iter().find(|(of, _)| *of == address).map(|(_, error)| error);
    let Some(last) = addresses.last() else { return io::ErrorKind::AddrNotAvailable.into() };
    let kind = end_of((*last).into()).map_or(io::ErrorKind::TimedOut, io::Error::kind);
    let mut ends: Vec<_> = addresses
        .iter()
        .take(NAMED)
        .map(|address| (*address).into())
        .map(|address| match end_of(address) {
            Some(error) => format!("{address}: {error}"),
            None => format!("{address}: no answer"),
        })
        .collect();
    if let more @ 1.. = addresses.len().saturating_sub(NAMED) {
        ends.push(format!("and {more} more"));
    }
    io::Error::new(kind, format!("connecting to {}", ends.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::sleep;

    use super::*;

    /// What an address of a test does: it is connected to, refuses, or never says anything.
    #[derive(Clone, Copy)]
    enum Does {
        Connect(Duration),
        Refuse,
        Nothing,
    }

    const AT_ONCE_CONNECTED: Does = Does::Connect(Duration::ZERO);

    /// What is made of addresses that do this, when each was begun, and how long it took, with room for all that may be at once.
    async fn raced(all: &[(&str, Does)]) -> (io::Result<SocketAddr>, Vec<(SocketAddr, u128)>, Duration) {
        raced_with(all, AT_ONCE).await
    }

    /// The same with so many places beside the first.
    async fn raced_with(
        all: &[(&str, Does)],
        places: usize,
    ) -> (io::Result<SocketAddr>, Vec<(SocketAddr, u128)>, Duration) {
        let places = tokio::sync::Semaphore::new(places);
        let addresses: Vec<SocketAddr> = all.iter().map(|(address, _)| address.parse().unwrap()).collect();
        let (began, begun) = (Instant::now(), RefCell::new(Vec::new()));
        let ended = first_of(
            &addresses,
            |address| {
                begun.borrow_mut().push((address, began.elapsed().as_millis()));
                let index = addresses.iter().position(|one| *one == address).unwrap();
                let does = all[index].1;
                async move {
                    match does {
                        Does::Connect(after) => sleep(after).await,
                        Does::Refuse => return Err(io::ErrorKind::ConnectionRefused.into()),
                        Does::Nothing => std::future::pending().await,
                    }
                    Ok(())
                }
            },
            || places.try_acquire().ok(),
        )
        .await;
        (ended.map(|(_, address)| address), begun.into_inner(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_place_beside_it_the_next_waits_until_one_is_given_up() {
        let all = [
            ("192.0.2.1:1", Does::Nothing),
            ("192.0.2.2:1", Does::Nothing),
            ("192.0.2.3:1", AT_ONCE_CONNECTED),
        ];
        let (ended, begun, took) = raced_with(&all, 0).await;
        assert_eq!(ended.unwrap().to_string(), "192.0.2.3:1");
        assert_eq!(begun.iter().map(|(_, at)| *at).collect::<Vec<_>>(), [0, 3000, 6000]);
        assert_eq!(took, 2 * ATTEMPT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_costs_no_seconds() {
        let (four, six) = ("192.0.2.1:443", "[2001:db8::1]:443");
        let (won, _, took) = raced(&[(four, Does::Nothing), (six, AT_ONCE_CONNECTED)]).await;
        assert_eq!(won.unwrap().to_string(), six);
        assert!((NEXT..2 * NEXT).contains(&took), "{took:?}");
        // One that refuses costs nothing.
        let (won, _, took) = raced(&[(four, Does::Refuse), (six, AT_ONCE_CONNECTED)]).await;
        assert_eq!((won.unwrap().to_string().as_str(), took < NEXT), (six, true));
        // One that is slow goes on beside the next.
        let slow = Does::Connect(2 * NEXT);
        let (won, begun, _) = raced(&[(four, slow), (six, Does::Nothing)]).await;
        assert_eq!((won.unwrap().to_string().as_str(), begun.len()), (four, 2));
        // One that answers is alone.
        let (won, begun, _) = raced(&[(four, AT_ONCE_CONNECTED), (six, AT_ONCE_CONNECTED)]).await;
        assert_eq!((won.unwrap().to_string().as_str(), begun.len()), (four, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn each_address_has_its_turn_and_few_are_under_way() {
        let silent: Vec<_> = (1..=9).map(|last| format!("192.0.2.{last}:443")).collect();
        let mut all: Vec<_> = silent.iter().map(|address| (address.as_str(), Does::Nothing)).collect();
        all.push(("192.0.2.10:443", AT_ONCE_CONNECTED));
        let (won, begun, took) = raced(&all).await;
        assert_eq!(won.unwrap().to_string(), "192.0.2.10:443");
        for (index, (_, at)) in begun.iter().enumerate() {
            let room = (index / AT_ONCE) as u128 * ATTEMPT.as_millis();
            let due = room + (index % AT_ONCE) as u128 * NEXT.as_millis();
            assert!((due..due + 20).contains(at), "{index} at {at}, not {due}");
        }
        assert!(took < CONNECT, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn where_none_connects_the_last_ones_end_is_told_and_each_is_named() {
        let (four, six) = ("192.0.2.1:443", "[2001:db8::1]:443");
        for (all, kind, within) in [
            (&[(four, Does::Nothing), (six, Does::Refuse)][..], io::ErrorKind::ConnectionRefused, CONNECT),
            (&[(four, Does::Refuse), (six, Does::Nothing)], io::ErrorKind::TimedOut, CONNECT),
            (&[(four, Does::Refuse), (six, Does::Refuse)], io::ErrorKind::ConnectionRefused, Duration::ZERO),
            (&[], io::ErrorKind::AddrNotAvailable, Duration::ZERO),
        ] {
            let (ended, _, took) = raced(all).await;
            let error = ended.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(took < within + NEXT, "{took:?}");
            assert!(all.iter().all(|(address, _)| error.to_string().contains(address)), "{error}");
        }
        let (ended, ..) = raced(&[(four, Does::Nothing), (six, Does::Refuse)]).await;
        let told = "connecting to 192.0.2.1:443: no answer; [2001:db8::1]:443: connection refused";
        assert_eq!(ended.unwrap_err().to_string(), told);
    }

    #[test]
    fn families_take_turns() {
        let turns = |all: &[&str]| {
            let all: Vec<SocketAddr> = all.iter().map(|address| address.parse().unwrap()).collect();
            families_in_turn(&all).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (a, b, c) = ("192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1");
        let (v, w) = ("[2001:db8::1]:1", "[2001:db8::2]:1");
        assert_eq!(turns(&[a, b, c, v, w]), [a, v, b, w, c]);
        assert_eq!(turns(&[v, w, a]), [v, a, w]);
        assert_eq!(turns(&[a, v, w]), [a, v, w]);
        assert!(turns(&[]).is_empty());
    }
}
