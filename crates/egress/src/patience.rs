//! Bounds how long work may take.

use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::Sleep;

/// Runs work that must end within a time, or fails with [`io::ErrorKind::TimedOut`]. Most such work is done as soon as it is begun;
/// then no clock is read and no timer made, unlike with `tokio::time::timeout`.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    within_once(|| true, limit, work).await
}

/// As [`within`], but the time begins only once `runs` says so. That is asked each time the work is polled.
pub(crate) async fn within_once<T>(
    runs: impl Fn() -> bool,
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let mut work = pin!(work);
    let mut timer = pin!(None::<Sleep>);
    std::future::poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        if timer.is_none() && runs() {
            timer.set(Some(tokio::time::sleep(limit)));
        }
        // Unconstrained, for work that uses up the task's budget at each poll would otherwise keep the clock from being read.
        match timer.as_mut().as_pin_mut().map(|timer| pin!(unconstrained(timer)).poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            _ => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_is_done_or_times_out() {
        let limit = Duration::from_secs(5);
        assert_eq!(within(limit, async { Ok(7) }).await.unwrap(), 7);
        let slow = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(seconds)
        };
        assert_eq!(within(limit, slow(4)).await.unwrap(), 4);
        let begun = tokio::time::Instant::now();
        assert_eq!(within(limit, slow(6)).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_begins_when_it_is_said_to() {
        let (begun, runs) = (tokio::time::Instant::now(), std::cell::Cell::new(false));
        let starts = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            runs.set(true);
            std::future::pending::<()>().await
        };
        let awaits =
            within_once(|| runs.get(), Duration::from_secs(5), std::future::pending::<io::Result<()>>());
        let ended = tokio::select! {
            biased;
            () = starts => unreachable!(),
            ended = awaits => ended,
        };
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 105);
    }

    #[tokio::test]
    async fn work_that_never_rests_times_out_as_well() {
        let busy = async {
            loop {
                tokio::task::consume_budget().await;
            }
        };
        let ended: io::Result<()> = within(Duration::from_millis(20), busy).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn work_that_is_done_at_once_needs_no_timer() {
        // No runtime, so a timer would panic.
        let done = pin!(within(Duration::from_secs(5), async { Ok(()) }))
            .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        assert!(matches!(done, Poll::Ready(Ok(()))));
    }
}
