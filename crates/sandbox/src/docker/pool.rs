//! The pool: sidecar containers that earlier runs started for later ones. A member holds no credential, listens on nothing and knows
//! no run; it waits for a bootstrap message, as any sidecar does, and ends by itself if none comes. It serves one run, and is
//! destroyed with it.
//!
//! ```text
//! made ──► waits on lockgate-sidecar-pool ──► taken: on lockgate-egress, under the run's name ──► answers ──► serves the run
//!                       │ ten minutes                                                                  └─ removed
//!                       └──► ends, and the engine removes it
//! ```
//! A run takes a member by connecting it to the network of sidecars, where it must be anyway: an engine does that once for a
//! container and refuses every further request. The alias the member gets there is the run's name, so at no moment is a member
//! taken without a trace of the run that took it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::models::{
    ContainerSummary, ContainerSummaryStateEnum as State, NetworkConnectRequest, NetworkDisconnectRequest,
};
use policy::RunId;
use tokio::io::AsyncWriteExt;

use super::attached::{Attached, next_output};
use super::engine::{Engine, endpoint_named};
use super::engine_error::error_text;
use super::mux::{Channel, Frames, frame};
use super::names::{EGRESS, LABEL_POOL, POOL_NETWORK, POOLED};
use super::prepare::OwnImage;
use crate::caller::Caller;
use crate::error::Error;

/// The variable that sets the size of the pool. S0.42
const VARIABLE: &str = "SIDECAR_POOL_SIZE";
const DEFAULT: usize = 2;
/// The largest size: each member is a container, and more than this is a mistake.
const MOST: usize = 32;

/// How long a member waits for its bootstrap message before it ends by itself.
pub const POOL_MAX_IDLE: Duration = Duration::from_secs(600);
/// The greatest age, in seconds, at which a member is taken: it has time left to receive its bootstrap message.
const OLDEST: i64 = 540;
/// The age, in seconds, above which a member should have ended by itself; and above which one that was never started is left over.
const OVERDUE: i64 = 660;
const HALF_MADE: i64 = 60;
/// How long a member that was taken may take over its first answer.
const AWAKE: Duration = Duration::from_secs(3);

/// Returns how many sidecars the caller wants to wait for later runs.
pub(super) fn size(caller: &Caller) -> Result<usize, Error> {
    let Some(text) = caller.variable(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(DEFAULT) };
    let number = text.bytes().all(|octet| octet.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    number.filter(|size| *size <= MOST).ok_or_else(|| Error::Impossible {
        what: format!("{VARIABLE} is `{}`, which is no number from 0 to {MOST}", text.escape_debug()),
        remedy: format!(
            "set it to how many sidecars may wait for later runs, 0 for none, or unset it for {DEFAULT}"
        ),
    })
}

/// One container of the pool, taken or not.
pub(super) struct Member {
    pub(super) id: String,
    image: String,
    state: Option<State>,
    /// In seconds.
    age: i64,
    networks: Vec<String>,
}

impl Member {
    fn of(summary: ContainerSummary, now: i64) -> Option<Self> {
        let networks = summary.network_settings.and_then(|settings| settings.networks).unwrap_or_default();
        Some(Self {
            id: summary.id?,
            image: summary.image_id?,
            state: summary.state,
            age: now.saturating_sub(summary.created?),
            networks: networks.into_keys().collect(),
        })
    }

    /// Whether no run has it yet.
    pub(super) fn is_untaken(&self) -> bool {
        self.networks.iter().all(|name| name == POOL_NETWORK)
    }

    /// Whether it runs this very build.
    pub(super) fn is_of(&self, own: &OwnImage) -> bool {
        own.id.as_ref() == Some(&self.image)
    }

    pub(super) fn can_be_taken(&self, own: &OwnImage) -> bool {
        self.is_of(own)
            && self.is_untaken()
            && self.state == Some(State::RUNNING)
            && (0..=OLDEST).contains(&self.age)
    }

    /// Whether it was left half-made, or should have ended by itself.
    pub(super) fn is_left_over(&self) -> bool {
        let runs = self.state == Some(State::RUNNING);
        self.is_untaken() && self.age > if runs { OVERDUE } else { HALF_MADE }
    }
}

impl Engine {
    /// Lists all members, taken or not.
    pub(super) async fn members(&self) -> Result<Vec<Member>, bollard::errors::Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let found = self.labelled(LABEL_POOL, POOLED).await?;
        Ok(found.into_iter().filter_map(|summary| Member::of(summary, now)).collect())
    }

    /// Returns the ids of the members that a run has taken.
    pub(super) async fn taken_by(&self, run: &RunId) -> Result<Vec<String>, bollard::errors::Error> {
        let mut taken = Vec::new();
        for member in self.members().await?.into_iter().filter(|member| !member.is_untaken()) {
            // A member that is gone by now needs no removal.
            if self.is_named(&member.id, run.as_str()).await {
                taken.push(member.id);
            }
        }
        Ok(taken)
    }

    /// Takes a member for a run, if one answers and leaves the pool; any error counts as no member. Calls `waits` if some member runs,
    /// so that our own binary is in its volume, and `taken` with each member taken, also one that then does not answer.
    pub(super) async fn take_member(
        &self,
        run: &RunId,
        own: &OwnImage,
        waits: impl FnOnce(),
        mut taken: impl FnMut(&str),
    ) -> Option<(String, Attached)> {
        let members = self.members().await.ok()?;
        let mut ids: Vec<String> =
            members.into_iter().filter(|member| member.can_be_taken(own)).map(|member| member.id).collect();
        if !ids.is_empty() {
            waits();
        }
        // Spreads runs that begin at once over the members.
        let first = run.as_str().bytes().map(usize::from).sum::<usize>() % ids.len().max(1);
        ids.rotate_left(first);
        for id in ids {
            if !self.take(&id, run).await {
                continue;
            }
            taken(&id);
            match self.wake(&id).await {
                Some(attached) if self.leave_pool(&id).await.is_ok() => return Some((id, attached)),
                _ => drop(self.remove_container(&id).await),
            }
        }
        None
    }

    /// Takes a member for a run. Of all runs that try, exactly one succeeds.
    async fn take(&self, id: &str, run: &RunId) -> bool {
        let endpoint_config = Some(endpoint_named(&[run.as_str()]));
        let request = NetworkConnectRequest { container: id.to_owned(), endpoint_config };
        self.api.connect_network(EGRESS, request).await.is_ok()
    }

    /// Attaches to a member, and waits for its heartbeat.
    async fn wake(&self, id: &str) -> Option<Attached> {
        let mut attached = Attached::to(self, id).await.ok()?;
        let (mut frames, mut complaint) = (Frames::default(), String::new());
        let answered = async {
            attached.input.write_all(&frame(Channel::Alive, &[])).await.ok()?;
            attached.input.flush().await.ok()?;
            while frames.next_frame().ok()?.is_none_or(|(channel, _)| channel != Channel::Alive) {
                frames.feed(&next_output(&mut attached.output, &mut complaint).await?);
            }
            Some(())
        };
        tokio::time::timeout(AWAKE, answered).await.ok()??;
        Some(attached)
    }

    /// Disconnects a member from the pool's network.
    async fn leave_pool(&self, id: &str) -> Result<(), String> {
        let request = NetworkDisconnectRequest { container: id.to_owned(), force: Some(true) };
        self.api.disconnect_network(POOL_NETWORK, request).await.map_err(|error| error_text(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(value: Option<&str>) -> Caller {
        Caller::new(1, 1, "/").with_env(value.map(|value| (VARIABLE, value)))
    }

    #[test]
    fn the_size_is_two_or_what_is_said_and_nothing_else_is_understood() {
        for (said, size) in [(None, 2), (Some(""), 2), (Some("0"), 0), (Some("7"), 7), (Some("32"), 32)] {
            assert_eq!(super::size(&caller(said)).unwrap(), size, "{said:?}");
        }
        for said in ["33", "-1", "+1", "two", " 2", "2 ", "1e1", "99999999999999999999999"] {
            let error = super::size(&caller(Some(said))).unwrap_err();
            assert!(error.to_string().contains(VARIABLE), "{error}");
            assert!(error.remedy().is_some_and(|remedy| remedy.contains("0 for none")), "{error}");
        }
    }

    #[test]
    fn only_a_young_one_of_this_build_that_nobody_has_is_taken() {
        let own = OwnImage { image: "i:1".into(), volume: "v".into(), id: Some("sha256:1".into()) };
        let member = |image: &str, state, age, networks: &[&str]| Member {
            id: "1".into(),
            image: image.into(),
            state: Some(state),
            age,
            networks: networks.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(member("sha256:1", State::RUNNING, 539, &[POOL_NETWORK]).can_be_taken(&own));
        for other in [
            member("sha256:2", State::RUNNING, 1, &[POOL_NETWORK]),
            member("sha256:1", State::CREATED, 1, &[POOL_NETWORK]),
            member("sha256:1", State::RUNNING, 541, &[POOL_NETWORK]),
            member("sha256:1", State::RUNNING, -1, &[POOL_NETWORK]),
            member("sha256:1", State::RUNNING, 1, &[POOL_NETWORK, EGRESS]),
            member("sha256:1", State::RUNNING, 1, &[EGRESS, "lockgate-exec-x"]),
        ] {
            assert!(!other.can_be_taken(&own));
        }
        assert!(member("sha256:2", State::CREATED, 61, &[POOL_NETWORK]).is_left_over());
        assert!(member("sha256:2", State::RUNNING, 661, &[POOL_NETWORK]).is_left_over());
        // A member that a run has taken is removed with the run.
        assert!(!member("sha256:1", State::EXITED, 9999, &[EGRESS]).is_left_over());
        assert!(!member("sha256:1", State::CREATED, 59, &[POOL_NETWORK]).is_left_over());
    }
}
