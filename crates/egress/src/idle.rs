//! Runs deferred work, such as giving memory back, in a lull: connections came or went, and then none did for a moment. A sidecar that
//! nobody uses is not woken.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

/// How long no connection must come or go.
const MOMENT: Duration = Duration::from_millis(400);

thread_local! {
    static ACTIVITY: Rc<Activity> = Rc::default();
}

#[derive(Default)]
struct Activity {
    count: Cell<u64>,
    is_awaited: Cell<bool>,
    first: Notify,
}

/// Notes that a connection came or went.
pub(crate) fn touch() {
    // As the thread ends, its local values are gone.
    let _ = ACTIVITY.try_with(|activity| {
        activity.count.set(activity.count.get().wrapping_add(1));
        if activity.is_awaited.take() {
            activity.first.notify_one();
        }
    });
}

/// Calls `act` in each lull, for ever.
pub(crate) async fn run_in_lulls(mut act: impl FnMut()) {
    let activity = ACTIVITY.with(Rc::clone);
    let mut seen = activity.count.get();
    loop {
        activity.is_awaited.set(true);
        activity.first.notified().await;
        while activity.count.get() != seen {
            seen = activity.count.get();
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
        let watched = run_in_lulls(|| lulls.set(lulls.get() + 1));
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
