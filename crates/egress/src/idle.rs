//! Lulls: connections came or went, and for a moment no more do. Then there is time for what would otherwise be in somebody's
//! way, such as giving memory back. A sidecar that nobody uses is not woken for it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

/// How long nothing must come or go.
const MOMENT: Duration = Duration::from_millis(400);

thread_local! {
    static STIRS: Rc<Stirs> = Rc::default();
}

#[derive(Default)]
struct Stirs {
    count: Cell<u64>,
    is_awaited: Cell<bool>,
    first: Notify,
}

/// Something came or went.
pub(crate) fn touch() {
    // At the very end of the thread there is nobody to tell.
    let _ = STIRS.try_with(|stirs| {
        stirs.count.set(stirs.count.get().wrapping_add(1));
        if stirs.is_awaited.take() {
            stirs.first.notify_one();
        }
    });
}

/// Does something in every lull, for ever.
pub(crate) async fn in_each(mut act: impl FnMut()) {
    let stirs = STIRS.with(Rc::clone);
    let mut seen = stirs.count.get();
    loop {
        stirs.is_awaited.set(true);
        stirs.first.notified().await;
        while stirs.count.get() != seen {
            seen = stirs.count.get();
            tokio::time::sleep(MOMENT).await;
        }
        act();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true, flavor = "current_thread")]
    async fn one_lull_follows_many_stirs() {
        let lulls = Cell::new(0);
        let watched = in_each(|| lulls.set(lulls.get() + 1));
        let stirred = async {
            for _ in 0..3 {
                for _ in 0..50 {
                    touch();
                    tokio::time::sleep(MOMENT / 4).await;
                }
                tokio::time::sleep(MOMENT * 4).await;
            }
            lulls.get()
        };
        tokio::select! {
            () = watched => unreachable!(),
            count = stirred => assert_eq!(count, 3),
        }
    }
}
